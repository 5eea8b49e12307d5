"""Options of a training command; training_words.py has the words themselves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.files.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "nemo_configs"
#: In the package where it is installed, beside it in a checkout.
CONFIG_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / _INSTALLED.name

_TASKS = "tasks"


@dataclass(frozen=True, slots=True)
class Setting:
    """A key that a named flag sets."""

    flag: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command line.

    `stored` says that the file is a run folder's, which may be somebody else's: no code is
    imported because it names it, and no key of the environment is read because it names one.
    """

    config_files: tuple[Path, ...]
    settings: tuple[Setting, ...] = ()
    assignments: tuple[str, ...] = ()
    resume: Path | None = None
    stored: bool = False
    dry_run: bool = False
    ask: bool = False
    rehearse: bool = False
    planner_only: bool = False
    probe_only: bool = False


def tasks() -> list[str]:
    """The tasks that have a YAML."""
    names = {path.stem for folder in _folders() for path in (folder / _TASKS).glob("*.yaml")}
    return sorted(name for name in names if "." not in name)


def check_task(name: str, remedy: str = "") -> None:
    """Raise `UsageError` with the tasks that there are, where this is none of them."""
    if name not in tasks():
        ending = f"; not {name}" if name else ""
        raise UsageError(
            "config.unknown-task",
            f"the first word is the task, one of {', '.join(tasks())}{ending}",
            remedy,
        )


def _folders() -> tuple[Path, ...]:
    """Folders of configurations: the shipped one, and the one beside a user's own code."""
    return CONFIG_FOLDER, Path.cwd() / CONFIG_FOLDER.name


def task_file(task: str, scale: str = "") -> Path:
    """Find the YAML of a task, or of one at a scale, which need not be there."""
    name = f"{task}.{scale}.yaml" if scale else f"{task}.yaml"
    paths = [folder / _TASKS / name for folder in _folders()]
    return next((path for path in paths if path.is_file()), paths[0])
