"""A question in one variant of its counterfactual set, in one form for all sources."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.faults import DataError

#: `1. Disagree`, `a) Send the patient home.`
_LABELLED = re.compile(r"(\w)[.)] (\S.*)", re.ASCII | re.DOTALL)
_LONGEST_LIST = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """A question; `gold` is the label of the right option, None where that is unknown.

    `text` has the options in it, `part` is what of its source it belongs to.
    """

    set_id: str
    variant: str
    part: str
    text: str
    labels: tuple[str, ...]
    options: tuple[str, ...]
    gold: str | None = None
    ordered: bool = False
    system: str = ""


def with_options(text: str, labels: Sequence[str], options: Sequence[str]) -> str:
    """A question with a line for each of its options below it."""
    lines = "\n".join(f"{label}. {option}" for label, option in zip(labels, options, strict=True))
    return f"{text}\n{lines}"


def listed(cell: str) -> tuple[str, ...]:
    """The texts of a cell that holds a list as Python writes it. Raises `ValueError`."""
    if len(cell) > _LONGEST_LIST:
        raise ValueError(f"longer than {_LONGEST_LIST:,} characters")
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError("no list of texts") from None
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise ValueError("no list of texts")
    if len(value) < 2 or len(set(value)) < len(value):
        raise ValueError("fewer than two options, or one twice")
    return tuple(value)


def labelled(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and texts of options such as `1. Disagree`. Raises `ValueError`."""
    matches = [_LABELLED.fullmatch(option) for option in options]
    pairs = [(match[1], match[2]) for match in matches if match]
    if len(pairs) < len(options) or len({label for label, _ in pairs}) < len(pairs):
        raise ValueError("options without a label of their own")
    return tuple(label for label, _ in pairs), tuple(text for _, text in pairs)


def refuse_torn_sets(path: Path, kind: str, questions: Sequence[Question], variants: int) -> None:
    """Raise `DataError` where a set has not each of so many variants once."""
    sets: dict[str, list[str]] = {}
    for question in questions:
        sets.setdefault(question.set_id, []).append(question.variant)
    torn = [
        f"{name} has {', '.join(sorted(members))}"
        for name, members in sets.items()
        if len(members) != variants or len(set(members)) != variants
    ]
    if torn:
        raise DataError(path, kind, [f"not each of {variants} variants once: {t}" for t in torn])
