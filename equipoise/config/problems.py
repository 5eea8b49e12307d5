"""What is wrong with a configuration, collected so that everything is reported at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from equipoise.errors import UsageError

SEPARATOR = "."


@dataclass(frozen=True, slots=True)
class Origin:
    """A file or flag that sets keys; `by_user` is false for what Equipoise sets by itself."""

    label: str
    by_user: bool


#: The keys that hold values and who set each of them last, in the order in which they were set.
Origins = Mapping[str, Origin]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the keys it is about.

    Without an `origin` it lies with the key that was set last. `refers_to` are the keys in
    an interpolation that cannot be resolved.
    """

    keys: tuple[str, ...]
    message: str
    origin: Origin | None = None
    refers_to: tuple[str, ...] = ()


def within(key: str, ancestor: str) -> bool:
    """Whether `key` is `ancestor` or lies below it; everything lies below the empty key."""
    return not ancestor or key == ancestor or key.startswith(ancestor + SEPARATOR)


def related(key: str, other: str) -> bool:
    """Whether one of the keys lies within the other."""
    return within(key, other) or within(other, key)


def usage_error(problems: Sequence[Problem], origins: Origins) -> UsageError:
    """One error with a line per problem, without those that only follow from another."""
    located = [_locate(problem, origins) for problem in _without_consequences(problems)]
    lines = dict.fromkeys(f"  {origin.label}: {line}" for origin, line in located)
    noun = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return UsageError(
        "\n".join([f"the configuration has {noun}:", *lines]),
        "Nothing was started. Mend this and run the command again.",
    )


def _without_consequences(problems: Sequence[Problem]) -> list[Problem]:
    """Leave out interpolations of wrong values, such as a product of what is no number."""
    roots = [problem for problem in problems if not problem.refers_to]
    wrong = {key for problem in roots for key in problem.keys}
    others = [problem for problem in problems if problem.refers_to]
    while following := [problem for problem in others if _refers_to_any(problem, wrong)]:
        wrong.update(key for problem in following for key in problem.keys)
        others = [problem for problem in others if problem not in following]
    return [problem for problem in problems if problem in roots or problem in others]


def _refers_to_any(problem: Problem, keys: Iterable[str]) -> bool:
    return any(key and related(key, name) for key in keys for name in problem.refers_to)


def _locate(problem: Problem, origins: Origins) -> tuple[Origin, str]:
    """Who is to blame, and the line that says for what."""
    if problem.origin is not None:
        return problem.origin, _line(problem.keys[0], problem.message)
    order = list(origins)
    found = [(key, leaf) for key in problem.keys if (leaf := _leaf_of(key, origins))]
    if not found:
        return Origin("configuration", by_user=True), _line(problem.keys[0], problem.message)
    key, leaf = max(found, key=lambda pair: order.index(pair[1]))
    return origins[leaf], _line(key, problem.message)


def _leaf_of(key: str, origins: Origins) -> str | None:
    """The key itself or the one that it lies in, else the last that lies in it."""
    above = [leaf for leaf in origins if within(key, leaf)]
    below = [leaf for leaf in origins if within(leaf, key)]
    return next(iter(above or below[-1:]), None)


def _line(key: str, message: str) -> str:
    return f"{key}: {message}" if key else message
