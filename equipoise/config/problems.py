"""Problems of a configuration, collected so that all are reported at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from equipoise.files.errors import UsageError

SEPARATOR = "."


@dataclass(frozen=True, slots=True)
class Origin:
    """A file or flag that sets keys; `by_user` is false for what Equipoise sets by itself.

    A `shipped` file holds our own values, also where the user has chosen it with --config.
    """

    label: str
    by_user: bool
    shipped: bool = False


#: The keys that hold values and who set each of them last, in the order in which they were set.
Origins = Mapping[str, Origin]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the keys it is about.

    Without an `origin` it lies with the key that was set last.
    """

    code: str
    keys: tuple[str, ...]
    message: str
    origin: Origin | None = None


def within(key: str, ancestor: str) -> bool:
    """Whether `key` is `ancestor` or lies below it; everything lies below the empty key."""
    return not ancestor or key == ancestor or key.startswith(ancestor + SEPARATOR)


def related(first: str, second: str) -> bool:
    return within(first, second) or within(second, first)


def add_problems(problems: list[Problem], additions: Iterable[Problem]) -> None:
    """Add the others, except those about keys that are known to be wrong already."""
    faulty_keys = [key for problem in problems for key in problem.keys if key]
    problems.extend(
        problem
        for problem in additions
        if not any(related(key, faulty_key) for key in problem.keys for faulty_key in faulty_keys)
    )


def usage_error(problems: Iterable[Problem], origins: Origins) -> UsageError:
    """One error with a line per problem."""
    located = [(problem, *_locate(problem, origins)) for problem in problems]
    # Our files are valid by themselves: what is wrong in them is made of what a user set.
    of_user = [row for row in located if row[1].by_user and not row[1].shipped]
    lines: dict[str, None] = {}
    for problem, origin, key in of_user or located:
        subject = f"{origin.label}: {key}" if key else origin.label
        lines[f"  {subject}: {problem.message} [{problem.code}]"] = None
    noun = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return UsageError(
        "config.problems",
        "\n".join([f"the configuration has {noun}:", *lines]),
        "Nothing was started. Correct this and run the command again.",
    )


def _locate(problem: Problem, origins: Origins) -> tuple[Origin, str]:
    """Who is to blame, and for which of the keys."""
    if problem.origin is not None:
        return problem.origin, problem.keys[0]
    order = list(origins)
    leaves: list[tuple[str, str]] = []
    for key in problem.keys:  # itself or the one that it lies in, else the last that lies in it
        above = [leaf for leaf in order if within(key, leaf)]
        below = [leaf for leaf in order if within(leaf, key)]
        leaves += [(key, leaf) for leaf in above[:1] or below[-1:]]
    if not leaves:
        return Origin("configuration", by_user=False), problem.keys[0]
    origin = origins[max((leaf for _, leaf in leaves), key=order.index)]
    return origin, next(key for key, leaf in leaves if origins[leaf] == origin)
