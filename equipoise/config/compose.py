"""Read files, flags and `key=value` words one by one, and merge them into one tree.

OmegaConf reads and interpolates; the trees are plain dictionaries. Lists and single values replace
each other; sections are merged. What cannot be read or resolved is a `UsageError` that names it.
"""

import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from equipoise.config.validate import NOTHING_STARTED, SEPARATOR, Origin, related, within
from equipoise.files.disk import parse_yaml, yaml_text
from equipoise.files.errors import UsageError, first_line

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

    `stored` says that the file is a run folder's, which may be somebody else's: it cannot cause
    code to be imported or an API key to be read.
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


# --- Sources --------------------------------------------------------------------------------------

_ASSIGNMENT = re.compile(r"\w+(\.[\w-]+)*=", re.ASCII)
_BASE = "base"
#: The word by which a file says over which scale it lies.
_OVER = "over"
#: Files in the folder of the scales that are not scales.
_NO_SCALES = frozenset({_BASE, "smoke"})


@dataclass(frozen=True, slots=True)
class Source:
    """The keys that one file or flag sets, interpolations unresolved."""

    origin: Origin
    tree: Mapping[str, Any] = field(default_factory=dict)
    scale: str | None = None  # of a file that is a scale
    scale_below: str | None = None  # the scale below a file, where no other is chosen


def run_sources(task: str, options: Options) -> list[Source]:
    """Read all that a run is composed of; later ones win. Raises `UsageError`.

    base <- scale <- task <- task at that scale (and in smoke.yaml) <- a user's own files <- flags
    <- `key=value`. A run that is resumed has all but the last two in its own config.yaml.
    """
    chosen = [
        *(_chosen_file(path, options) for path in options.config_files),
        *(read_value(setting.flag, setting.key, setting.value) for setting in options.settings),
        *(read_assignment(text) for text in options.assignments),
    ]
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


def task_defaults(task: str) -> list[Source]:
    """Read a task's defaults: base.yaml and the task's YAML."""
    files = [CONFIG_FOLDER / f"{_BASE}.yaml", task_file(task)]
    return [read_file(path, by_user=False) for path in files]


def _chosen_file(path: Path, options: Options) -> Source:
    """Read a file of --config, or the config.yaml of a run, which is not the user's to correct."""
    if options.resume:
        if not path.is_file():
            raise UsageError(
                "resume.no-config",
                f"{options.resume} is not a run to resume: it has no {path.name}",
                "Name the folder of a run: results/<task>/<run name>.",
            )
        return read_file(path, by_user=False)
    if not path.exists() and path.parts[:1] == (CONFIG_FOLDER.name,):  # from another folder
        path = CONFIG_FOLDER.joinpath(*path.parts[1:])
    shipped = CONFIG_FOLDER / f"{path.stem}.yaml"
    if not path.exists() and shipped.exists():
        message = f"{path} does not exist, did you mean {_label(shipped)}?"
        raise UsageError("config.no-file", message, NOTHING_STARTED)
    source = _with_scale(read_file(path, by_user=True))
    if options.stored:
        _refuse_references(source)
    return source


#: Interpolations of a run's config.yaml: all is resolved but a schedule that follows the steps.
_FOREIGN_REFERENCE = re.compile(r"\$\{(?!(?:mul|div|max|floordiv):|grpo\.max_num_steps\})")


def _refuse_references(source: Source) -> None:
    """Refuse other interpolations of a stranger's run: they could read variables, or double."""
    for key, value in leaves(source.tree):
        if _FOREIGN_REFERENCE.search(str(value)):
            raise UsageError(
                "config.foreign-reference",
                f"{source.origin.label}: {key} reads other keys, which no run's config.yaml does",
                "Take the file from the run's own folder.",
            )


def _with_scale(source: Source) -> Source:
    """Tell whether a file is a scale, or which it lies over; drop that word, which is not a key."""
    tree = dict(source.tree)
    below, name = tree.pop(_OVER, None), Path(source.origin.label).stem
    scales = sorted({path.stem for path in CONFIG_FOLDER.glob("*.yaml")} - _NO_SCALES)
    if below is not None and below not in scales:
        raise UsageError(
            "config.unknown-scale",
            f"{source.origin.label}: {_OVER}: {below} is not a scale; there are "
            f"{', '.join(scales)}",
            NOTHING_STARTED,
        )
    is_scale = source.origin.shipped and name in scales
    return replace(source, tree=tree, scale=name if is_scale else None, scale_below=below)


def _label(path: Path) -> str:
    """Name a file as the user gave it, a shipped one from the project's root."""
    root = CONFIG_FOLDER.parent
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def read_file(path: Path, *, by_user: bool) -> Source:
    """Read a YAML file. Raises `UsageError`."""
    if path.resolve().is_relative_to(CONFIG_FOLDER.resolve()):
        return _shipped_file(path, by_user)
    return _read(Origin(_label(path), by_user), partial(_load, path))


@cache  # PyYAML takes longer than all else that is done with a configuration
def _shipped_file(path: Path, by_user: bool) -> Source:
    return _read(Origin(_label(path), by_user, shipped=True), partial(_load, path))


def _load(path: Path) -> Any:
    return OmegaConf.load(io.StringIO(yaml_text(path)))


def read_value(label: str, key: str, value: Any, *, by_user: bool = True) -> Source:
    """Read a named flag. Raises `UsageError`."""
    tree: Any = value
    for name in reversed(key.split(SEPARATOR)):
        tree = {name: tree}
    return _read(Origin(label, by_user), lambda: OmegaConf.create(tree), key)


def read_assignment(text: str) -> Source:
    """Read a `key=value` word of the command line; the value is YAML. Raises `UsageError`."""
    origin = Origin("command line", by_user=True)
    if not _ASSIGNMENT.match(text):
        message = f"{text!r} is not a key=value, such as grpo.max_num_steps=100"
        raise UsageError("config.invalid-assignment", message, NOTHING_STARTED)
    key, _, value = text.partition("=")

    def parse() -> DictConfig:
        parse_yaml(value)
        return OmegaConf.from_dotlist([text])

    return _read(origin, parse, key)


def _read(origin: Origin, load: Callable[[], Any], key: str = "") -> Source:
    """Load a tree, and name the source of what cannot be read."""
    subject = f"{origin.label}: {key}" if key else origin.label
    try:
        tree = OmegaConf.to_container(load(), resolve=False)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark and not key else ""
        reason = getattr(error, "problem", None) or getattr(error, "strerror", None)
        raise UsageError(
            "config.unreadable-file",
            f"{subject} cannot be read: {line}{reason or first_line(error)}",
            NOTHING_STARTED,
        ) from error
    if not isinstance(tree, dict):
        message = f"{subject} should hold sections such as `grpo:` with keys below them"
        raise UsageError("config.unreadable-file", message, NOTHING_STARTED)
    return Source(origin, _with_text_keys(tree))


def _with_text_keys(tree: Any) -> Any:
    """Make the names of sections texts; YAML knows numbers, too."""
    if isinstance(tree, dict):
        return {str(name): _with_text_keys(value) for name, value in tree.items()}
    return tree


# --- Sources as one tree --------------------------------------------------------------------------

_REFERENCE = re.compile(r"\$\{([\w.]+)(?:\[\d+\])?\}")
_LARGEST = 2**63
#: OmegaConf's words before those of a resolver.
_RAISED = re.compile(r"^\w+ raised while resolving interpolation: ")


@dataclass(frozen=True, slots=True)
class Composition:
    """The merged values with their interpolations resolved, and who set each of them last."""

    values: dict[str, Any]
    raw: dict[str, Any]  # the merged tree with its interpolations
    origins: dict[str, Origin]

    def follows(self, section: str, name: str, key: str) -> bool:
        """Tell whether a value's interpolations read the `key` and nothing else."""
        return set(_REFERENCE.findall(str(self.raw[section].get(name)))) == {key}


def compose(sources: Sequence[Source]) -> Composition:
    """Merge the sources, later ones over earlier ones. Raises `UsageError` like `_resolve`."""
    for name, function in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            with warnings.catch_warnings():
                # OmegaConf 2.4 has renamed the method; NeMo-RL's container has 2.3.
                warnings.simplefilter("ignore")
                OmegaConf.register_new_resolver(name, function)
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for source in sources:
        _overlay(merged, source.tree)
        for key, value in leaves(source.tree):
            if value == {} and any(within(leaf, key) for leaf in origins):
                continue  # an empty section changes nothing
            for leaf in [leaf for leaf in origins if related(leaf, key)]:
                del origins[leaf]
            origins[key] = source.origin  # behind those that were set before
    return Composition(_resolve(merged), merged, origins)


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Put `above` over `below`, section by section."""
    for name, value in above.items():
        if isinstance(value, dict):
            if not isinstance(below.get(name), dict):
                below[name] = {}
            _overlay(below[name], value)
        else:
            below[name] = value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Key and value of what has no keys below it; an empty section is such a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, prefix + name + SEPARATOR)
        else:
            yield prefix + name, value


def value_at(tree: Any, key: str) -> Any:
    """The value under a dotted key; None where it is not set."""
    for name in key.split(SEPARATOR):
        tree = (tree or {}).get(name)
    return tree


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """The leaves in which two trees differ; a key that is not set is None."""
    before, after = dict(leaves(first)), dict(leaves(second))
    return {key for key in before | after if before.get(key) != after.get(key)}


def _resolve(tree: dict[str, Any]) -> dict[str, Any]:
    """Resolve the interpolations. Raises `UsageError` for the first that cannot be."""
    try:
        values: Any = OmegaConf.to_container(
            OmegaConf.create(tree), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        raw = dict(leaves(tree)).get(key, "")
        reason = f"{key} = {raw}: {_RAISED.sub('', first_line(error))}"
        raise UsageError("config.unresolvable-value", reason, NOTHING_STARTED) from error
    except RecursionError as error:
        message = "the configuration has a section that refers to itself"
        raise UsageError("config.endless-reference", message, NOTHING_STARTED) from error
    return dict(values)


def _quotient(a: Any, b: Any) -> Any:
    """Divide; the quotient is an integer where nothing remains, for most keys take nothing else.

    OmegaConf compares what it passes with the annotations, hence Any.
    """
    ratio = _number(a) / _number(b)
    exact = isinstance(a, int) and isinstance(b, int) and a % b == 0
    return a // b if exact else ratio


#: `${floordiv:a,b}`, how often b fits into a, is our own; NeMo-RL registers some of the others too.
_RESOLVERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "mul": lambda a, b: _number(a) * _number(b),
    "div": _quotient,
    "max": lambda a, b: max(_number(a), _number(b)),
    "floordiv": lambda a, b: int(_number(a) // _number(b)),
}


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= _LARGEST:
        raise TypeError(f"{value!r} is not a number")
    return value
