"""Options of a training command; training_words.py has the words themselves."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "nemo_configs"
#: In the package where it is installed, beside it in a checkout.
CONFIG_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / _INSTALLED.name

_TASKS = "tasks"
#: Flags that count prompts.
_IN_SETS = frozenset({"--num-samples", "--batch-size"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A key that a named flag sets."""

    flag: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command line; `fitted` are values made to fit them, which win.

    `stored` says that the file is a run folder's, which may be somebody else's: no code is
    imported because it names it, and no key of the environment is read because it names one.
    """

    config_files: tuple[Path, ...]
    settings: tuple[Setting, ...] = ()
    assignments: tuple[str, ...] = ()
    fitted: tuple[Setting, ...] = ()
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
        other = f"; not {name}" if name else ""
        raise UsageError(
            "config.unknown-task",
            f"the first word is the task, one of {', '.join(tasks())}{other}",
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


def whole_sets(options: Options, size: int) -> tuple[Options, list[str]]:
    """The options with --num-samples and --batch-size rounded up to sets of `size` prompts.

    With them comes what was rounded, in words. A `key=value` is taken as it is.
    """
    settings, messages = [], []
    for setting in options.settings:
        flag, value = setting.flag, setting.value
        if flag in _IN_SETS and isinstance(value, int) and value > 0 and value % size:
            whole = -(-value // size) * size
            messages.append(
                f"{flag} {value} is not a whole number of counterfactual sets of {size}: "
                f"taking {whole}"
            )
            settings.append(replace(setting, value=whole))
        else:
            settings.append(setting)
    return replace(options, settings=tuple(settings)), messages
