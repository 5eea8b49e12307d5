"""From sources to one tree, with who set each value last.

OmegaConf interpolates; the tree itself is plain dictionaries. Lists and single values replace each
other; sections are merged. Nothing here raises for what a user wrote: it becomes a `Problem`.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from equipoise.config.problems import SEPARATOR, Origin, Problem, related, within
from equipoise.config.secrets import has_secret, is_secret_name
from equipoise.config.sources import Source, first_line

_REFERENCE = re.compile(r"\$\{([\w.]+)(?:\[\d+\])?\}")
#: What OmegaConf puts before the words of a resolver.
_RAISED = re.compile(r"^\w+ raised while resolving interpolation: ")
#: Variables that `${oc.env:NAME}` may take in. A run's configuration is resolved, written down and
#: shared: numbers and paths may be, and a word, which may be a password, of well-known names alone.
_SHAREABLE = re.compile(
    r"USER|LOGNAME|HOSTNAME|SLURM_(?!JWT)\w+|CUDA_VISIBLE_DEVICES|WANDB_(?:PROJECT|ENTITY|MODE|NAME)"
)
_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,12})?")
_PATH = re.compile(r"~?/[^\n]*|\.{1,2}/[^\n]*|[A-Za-z]:[\\/][^\n]*")
_LARGEST = 2**63
#: Values that one key may lead to by interpolation; in a stranger's run they could double for ever.
_MOST = 500
#: No section lies this deep; an interpolation that contains itself does.
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Composition:
    """The merged values, interpolations resolved; a value with a problem is left out."""

    values: dict[str, Any]
    raw: dict[str, Any]  # the merged tree with its interpolations
    origins: dict[str, Origin]
    references: dict[str, list[str]]
    problems: tuple[Problem, ...]


def compose(sources: Sequence[Source]) -> Composition:
    """Merge the sources, later ones over earlier ones, and resolve the interpolations."""
    for name, function in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            _register(name, function)
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for source in sources:
        _overlay(merged, source.tree)
        for key, value in leaves(source.tree):
            _claim(key, isinstance(value, dict), source.origin, origins)
    references = {key: list(_references(value)) for key, value in leaves(merged)}
    problems = [problem for source in sources for problem in source.problems]
    tree = deepcopy(merged)
    counted: dict[str, int] = {}
    for key in references:
        if _leads_to_many(key, references, counted):
            problems.append(
                Problem(
                    "config.too-many-values",
                    (key,),
                    f"its interpolations lead to more than {_MOST:,} values",
                )
            )
            *sections, name = key.split(SEPARATOR)
            del reduce(getitem, sections, tree)[name]
    _register("oc.env", _shareable_variable, replace=True)
    try:
        values = _resolve(OmegaConf.create(tree), "", problems)
    finally:
        _register("oc.env", oc.env, replace=True)
    return Composition(values, merged, origins, references, tuple(problems))


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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The leaves in which two trees differ, with both values; None is a key that is not set."""
    before, after = dict(leaves(old)), dict(leaves(new))
    pairs = {key: (before.get(key), after.get(key)) for key in before | after}
    return {key: (first, second) for key, (first, second) in pairs.items() if first != second}


def _references(value: Any) -> Iterator[str]:
    """The keys in the interpolations of a value."""
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _references(item)


def _leads_to_many(
    key: str, references: Mapping[str, Sequence[str]], counted: dict[str, int]
) -> bool:
    try:
        return _count_values(key, references, counted) > _MOST
    except RecursionError:
        return True


def _count_values(
    key: str, references: Mapping[str, Sequence[str]], counted: dict[str, int]
) -> int:
    """How many values are read for a key; what refers to itself is for OmegaConf to refuse."""
    if key not in counted:
        counted[key] = 0
        leaves = [key] if key in references else [leaf for leaf in references if within(leaf, key)]
        named = [name for leaf in leaves for name in references[leaf]]
        counted[key] = len(leaves) + sum(_count_values(n, references, counted) for n in named)
    return counted[key]


def _claim(key: str, is_section: bool, origin: Origin, origins: dict[str, Origin]) -> None:
    """Note at the end who set `key`, which takes the place of values above and below it."""
    replaced = [leaf for leaf in origins if leaf != key and related(leaf, key)]
    if is_section and any(within(leaf, key) for leaf in replaced):
        return
    for leaf in [*replaced, *([key] if key in origins else [])]:
        del origins[leaf]
    origins[key] = origin


def _resolve(node: Any, key: str, problems: list[Problem], depth: int = 0) -> Any:
    """The plain value of a node, without the children that cannot be resolved."""
    if isinstance(node, DictConfig):
        return {
            str(name): value
            for name in node
            if (value := _child(node, name, key, problems, depth)) is not _UNRESOLVED
        }
    if isinstance(node, ListConfig):
        items = [_child(node, index, key, problems, depth) for index in range(len(node))]
        return [item for item in items if item is not _UNRESOLVED]
    return node


_UNRESOLVED = object()


def _child(
    node: DictConfig | ListConfig, name: Any, parent: str, problems: list[Problem], depth: int
) -> Any:
    key = f"{parent}{SEPARATOR}{name}" if parent else str(name)
    try:
        child = node[name]
    except OmegaConfBaseException as error:
        problems.append(
            Problem("config.unresolvable-value", (key,), _RAISED.sub("", first_line(error)))
        )
        return _UNRESOLVED
    if depth == _DEEPEST:
        problems.append(
            Problem("config.endless-reference", (key,), "is nested too deeply, or refers to itself")
        )
        return _UNRESOLVED
    if isinstance(child, int) and abs(child) >= _LARGEST:
        problems.append(Problem("config.too-large-number", (key,), "is too large a number"))
        return _UNRESOLVED
    return _resolve(child, key, problems, depth + 1)


class NotShareableError(ValueError):
    """A variable whose value may be a secret."""


def _shareable_variable(name: str, *default: Any) -> Any:
    """The variable's value as OmegaConf's own `oc.env` gives it.

    Raises `NotShareableError` when it may be a secret. The value is in no message.
    """
    value = os.environ.get(name)
    if value is None:
        return oc.env(name, *default)
    secret = is_secret_name(name) or has_secret(value)
    forms = (_SHAREABLE.fullmatch(name), _NUMBER.fullmatch(value), _PATH.fullmatch(value))
    if secret or not any(forms):
        raise NotShareableError(
            f"${{oc.env:{name}}} would be written in clear into the run's config.yaml; a key stays "
            "in the environment, under the name that api_key_env gives, and for anything else but "
            "a path or a number write the value itself"
        )
    return oc.env(name, *default)


def _register(name: str, function: Callable[..., Any], *, replace: bool = False) -> None:
    with warnings.catch_warnings():
        # OmegaConf 2.4 has renamed the method; NeMo-RL's container has 2.3.
        warnings.simplefilter("ignore")
        OmegaConf.register_new_resolver(name, function, replace=replace)


def _quotient(a: Any, b: Any) -> Any:
    """An integer where the division leaves no rest, for most keys take nothing else.

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
