"""The common form of published answers from all sources.

An item is asked in several variants, and each answerer gives one answer to each of them. What a
pair of variants is compared for is said by its role.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data_prep.text_files import DataError

#: An answer that is there and names no option: it is never right, and is none of the options.
NO_OPTION = "no option"
#: The share of answers that may be unreadable before the file is taken for one of another form.
MOST_UNREAD = 0.1

Role = Literal["counterfactual", "yardstick"]


@dataclass(frozen=True, slots=True)
class VariantPair:
    """Two variants of an item, to be compared.

    The two of a counterfactual pair differ in what must not matter. Those of a yardstick differ in
    something else, the wording or the day of asking, and show how often answers change anyhow. It
    is one for the pairs that have the variant `of`, or for all of them.
    """

    first: str
    second: str
    role: Role
    of: str = ""

    def measures(self, pair: "VariantPair") -> bool:
        """Whether this is a yardstick, and one for that pair."""
        return self.role == "yardstick" and (not self.of or self.of in (pair.first, pair.second))


@dataclass(frozen=True, slots=True)
class Sheet:
    """The answers of one answerer to one question about each item, variant by variant.

    `answers` has an answer for each item, None where there is none or none that can be read.
    `gold` says what is right, item by item; it is empty where unknown, and `counted` is then
    the answer whose rate is told.
    """

    answerer: str
    question: str
    items: tuple[str, ...]
    answers: Mapping[str, tuple[str | None, ...]]
    gold: tuple[str, ...] = ()
    counted: str = ""


@dataclass(frozen=True, slots=True)
class Readers:
    """The answers of several people to one question: one per variant, item and person.

    Where other people read the other variants, variants cannot be compared by them.
    """

    question: str
    items: tuple[str, ...]
    answers: Mapping[str, tuple[tuple[str | None, ...], ...]]
    counted: str


@dataclass(frozen=True, slots=True)
class Published:
    """All that was read. `unread` says of every answer that could not be read where it stands.

    `texts` has of each item what was asked in its variants, where the source holds that.
    """

    pairs: tuple[VariantPair, ...]
    sheets: tuple[Sheet, ...]
    readers: tuple[Readers, ...] = ()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class About:
    """Of a source: what it is, under which licence, from where, and what must be known of it."""

    title: str
    licence: str
    where: str
    caveats: tuple[str, ...]


def refuse_another_form(path: Path, kind: str, unread: Sequence[str], answers: int) -> None:
    """Raise `DataError` where so many answers cannot be read that the file is another one."""
    if len(unread) > MOST_UNREAD * answers:
        summary = f"{len(unread):,} of {answers:,} answers cannot be read:"
        raise DataError("answers.other-form", path, kind, [summary, *unread])
