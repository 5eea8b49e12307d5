"""Sources of a configuration: files, flags and `key=value` words, read one by one.

Nothing here raises for what a user wrote: it becomes a `Problem` of its source.
"""

import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from equipoise.config.flags import CONFIG_FOLDER, Options, task_file
from equipoise.config.problems import SEPARATOR, Origin, Problem
from equipoise.config.yaml_text import parse_yaml, yaml_text
from equipoise.files.errors import UsageError

_ASSIGNMENT = re.compile(r"\w+(\.[\w-]+)*=", re.ASCII)
_BASE = "base"
#: The words by which a file says that it is a scale, and which, or over which scale it lies.
_SCALE, _OVER = "scale", "over"
#: What is in the folder of the scales and is none.
_NO_SCALES = frozenset({_BASE, "smoke"})


@dataclass(frozen=True, slots=True)
class Source:
    """The keys that one file or flag sets, interpolations unresolved, or why it was not read."""

    origin: Origin
    tree: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    scale: str | None = None  # of a file that is a scale
    scale_below: str | None = None  # the scale below a file, where no other is chosen


def run_sources(task: str, options: Options) -> list[Source]:
    """All that a run is composed of; later ones win.

    base <- scale <- task <- task at that scale (and in smoke.yaml) <- a user's own files <- flags
    <- `key=value`. A run that is resumed has all but the last two in its own config.yaml.
    """
    chosen = _of_user(options)
    base, *of_task = task_defaults(task)
    scales = [source for source in chosen if source.scale]
    if not scales:  # the last file that says over which scale it lies decides
        below = [source.scale_below for source in chosen if source.scale_below][-1:]
        paths = [CONFIG_FOLDER / f"{name}.yaml" for name in below]
        scales = [_with_scale(read_file(path, by_user=False)) for path in paths]
    wandb = [
        read_value(variable, f"logger.wandb.{name}", value, by_user=False)
        for name in ("project", "entity", "name")
        if (value := os.environ.get(variable := f"WANDB_{name.upper()}"))
    ]
    names = [source.scale or "" for source in scales[-1:]]
    names += [Path(s.origin.label).stem for s in chosen if s.scale_below and s.origin.shipped]
    at_scale = [file for name in names if (file := task_file(task, name)).is_file()]
    return [
        base,
        *wandb,
        *scales,
        *of_task,
        *(read_file(file, by_user=False) for file in at_scale),
        *(source for source in chosen if not source.scale),
    ]


def _of_user(options: Options) -> list[Source]:
    return [
        *(_chosen_file(path, options) for path in options.config_files),
        *(read_value(setting.flag, setting.key, setting.value) for setting in options.settings),
        *(read_assignment(text) for text in options.assignments),
    ]


def task_defaults(task: str) -> list[Source]:
    """Read a task's defaults: base.yaml and the task's YAML."""
    files = [CONFIG_FOLDER / f"{_BASE}.yaml", task_file(task)]
    return [read_file(path, by_user=False) for path in files]


def _chosen_file(path: Path, options: Options) -> Source:
    """A file of --config; that of a resumed run is complete, and not the user's to correct."""
    if options.resume:
        if not path.is_file():
            raise UsageError(
                "resume.no-config",
                f"{options.resume} is no run to resume: it has no {path.name}",
                "Name the folder of a run: results/<task>/<run name>.",
            )
        return read_file(path, by_user=False)
    if not path.exists() and path.parts[:1] == (CONFIG_FOLDER.name,):  # from another folder
        path = CONFIG_FOLDER.joinpath(*path.parts[1:])
    shipped = CONFIG_FOLDER / f"{path.stem}.yaml"
    if not path.exists() and shipped.exists():
        origin = Origin(str(path), by_user=True)
        message = f"there is no such file, did you mean {_label(shipped)}?"
        return Source(origin, problems=(Problem("config.no-file", ("",), message, origin),))
    return _with_scale(read_file(path, by_user=True))


def _with_scale(source: Source) -> Source:
    """The source without `scale` and `over`, which are no keys: they say where the file lies."""
    tree = dict(source.tree)
    words = ((word, tree.pop(word, None)) for word in (_SCALE, _OVER))
    named = {word: name for word, name in words if name is not None}
    scales = sorted({path.stem for path in CONFIG_FOLDER.glob("*.yaml")} - _NO_SCALES)
    problems = tuple(
        Problem(
            "config.unknown-scale",
            (word,),
            f"there is no scale {name}; there are {', '.join(scales)}",
            source.origin,
        )
        for word, name in named.items()
        if name not in scales
    )
    if problems:
        return replace(source, tree=tree, problems=(*source.problems, *problems))
    return replace(source, tree=tree, scale=named.get(_SCALE), scale_below=named.get(_OVER))


def _label(path: Path) -> str:
    """The path as the user gave it; a shipped file from the project's root."""
    root = CONFIG_FOLDER.parent
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def read_file(path: Path, *, by_user: bool) -> Source:
    """A YAML file."""
    shipped = path.resolve().is_relative_to(CONFIG_FOLDER.resolve())
    origin = Origin(_label(path), by_user, shipped)
    return _read(origin, lambda: OmegaConf.load(io.StringIO(yaml_text(path))))


def read_value(label: str, key: str, value: Any, *, by_user: bool = True) -> Source:
    """Read a named flag."""
    tree: Any = value
    for name in reversed(key.split(SEPARATOR)):
        tree = {name: tree}
    return _read(Origin(label, by_user), lambda: OmegaConf.create(tree), key)


def read_assignment(text: str) -> Source:
    """A `key=value` word of the command line; the value is YAML."""
    origin = Origin("command line", by_user=True)
    if not _ASSIGNMENT.match(text):
        message = f"{text!r} is no key=value, such as grpo.max_num_steps=100"
        return Source(
            origin, problems=(Problem("config.invalid-assignment", ("",), message, origin),)
        )
    key, _, value = text.partition("=")

    def parse() -> DictConfig:
        parse_yaml(value)
        return OmegaConf.from_dotlist([text])

    return _read(origin, parse, key)


def _read(origin: Origin, load: Callable[[], Any], key: str = "") -> Source:
    """Call `load` and turn what it raises into a problem of `key`."""

    def failed(reason: str, subject: str = key) -> Source:
        return Source(
            origin, problems=(Problem("config.unreadable-file", (subject,), reason, origin),)
        )

    try:
        tree = OmegaConf.to_container(load(), resolve=False)
    except MarkedYAMLError as error:
        mark = error.problem_mark if not key else None
        line = f"line {mark.line + 1}: " if mark else ""
        return failed(f"{line}not valid YAML ({error.problem})")
    except YAMLError as error:
        return failed(f"not valid YAML ({first_line(error)})")
    except OmegaConfBaseException as error:
        return failed(first_line(error), str(error.full_key or key))
    except FileNotFoundError:
        return failed("there is no such file")
    except OSError as error:
        return failed(f"cannot be read ({error.strerror or first_line(error)})")
    except ValueError as error:
        return failed(f"cannot be read ({first_line(error)})")
    except RecursionError:
        return failed("is nested too deeply")
    if not isinstance(tree, dict):
        return failed("should hold sections such as `grpo:` with keys below them")
    return Source(origin, _with_text_keys(tree))


def _with_text_keys(tree: Any) -> Any:
    """YAML knows numbers as keys; no key of ours is one."""
    if isinstance(tree, dict):
        return {str(name): _with_text_keys(value) for name, value in tree.items()}
    return tree


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
