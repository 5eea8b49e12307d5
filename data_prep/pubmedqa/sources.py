"""Items from a JSON file or from the Hugging Face hub: every fault is reported at once.

Rows have the keys of the official `ori_pqal.json` (an object, pmid -> row), those of the hub, or
question, context and ground_truth, the form for any other set.
"""

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import Label
from equipoise.files.hub import is_folder_name, offline_reason
from equipoise.files.records import DataError, parse_json, read_source, row_faults

_NO_WORD = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a structured abstract; its label is empty if it has none."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """One question; `sections` is the abstract without its conclusion, `gold` one of `LABELS`.

    `extra` goes into the metadata of its prompt: the finding that decides or the abstract's own
    conclusion, where one is known.
    """

    id: str
    question: str
    sections: Sequence[Section]
    gold: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def normal_question(question: str) -> str:
    """The words of a question alone, in lower case: what makes two questions the same."""
    return _NO_WORD.sub(" ", question.casefold()).strip()


# --- published ------------------------------------------------------------------------------------
# The published split of PubMedQA's 1,000 labelled items, and the guard around its test items.
#
# The procedure is that of `preprocess/split_dataset.py` in github.com/pubmedqa/pubmedqa: Python's
# random numbers from seed 0; the ids of each label shuffled and cut in two, the second part the
# test set; the first part cut in ten folds in the same way.


SEED, FOLDS = 0, 10
#: How many questions a message names.
_EXAMPLES = 3


def published_split(gold: Mapping[str, str]) -> tuple[list[list[str]], list[str]]:
    """Split ids by their labels: ten folds to train and validate on, and the official test set.

    `gold` is in the order of the published file. Raises `ValueError` unless the result is the
    official test set.
    """
    rng = random.Random(SEED)  # noqa: S311
    development, test = _parts(list(gold), gold, 2, rng)
    official, _ = official_fingerprints()
    of_test = {fingerprint(item) for item in test}
    if of_test != official:
        raise ValueError(
            f"the published procedure gives a test set that shares {len(of_test & official)} of "
            f"the {len(official)} official items: it needs all 1,000 labelled items in their "
            "published order (ori_pqal.json); take split: random for any other set"
        )
    return _parts(development, gold, FOLDS, rng), test


def _parts(
    ids: Sequence[str], gold: Mapping[str, str], number: int, rng: random.Random
) -> list[list[str]]:
    """`number` parts of equal size with every label cut alike.

    Where the last part comes out smaller, for the labels do not divide, it takes one item of each
    other part by chance.
    """
    by_label = []
    for label in LABELS:
        members = [item for item in ids if gold[item] == label]
        rng.shuffle(members)
        size = math.ceil(len(members) / number)
        starts = [part * size for part in range(number)]
        by_label.append([members[s : s + size] for s in starts])
    parts = [[item for cut in by_label for item in cut[part]] for part in range(number)]
    if len(parts[-1]) != len(parts[0]):
        for part in parts[:-1]:
            part.remove(moved := rng.choice(part))
            parts[-1].append(moved)
    return parts


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def official_fingerprints() -> tuple[frozenset[str], frozenset[str]]:
    """Hashes of pmids and of questions: `official_test.txt` has both of a test item in a line."""
    text = (files(__package__) / "official_test.txt").read_text(encoding="utf-8")
    pairs = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return frozenset(p[0] for p in pairs), frozenset(p[1] for p in pairs)


def is_official_test(item_id: str, question: str) -> bool:
    """Whether this is an item of the official test set, by its id or by its question's words."""
    ids, questions = official_fingerprints()
    return fingerprint(item_id) in ids or fingerprint(normal_question(question)) in questions


def refuse_leaked(items: Sequence[Item]) -> None:
    """Raise `ValueError` with their count if any of these is an official test item."""
    leaks = [item for item in items if is_official_test(item.id, item.question)]
    if not leaks:
        return
    examples = ", ".join(item.id for item in leaks[:_EXAMPLES])
    raise ValueError(
        f"{len(leaks)} of {len(items)} questions are of the official PubMedQA test set ({examples}"
        f"{', ...' if len(leaks) > _EXAMPLES else ''}): nothing may be trained on them. Leave them "
        "out, or take all 1,000 labelled items (ori_pqal.json, or source: hub) with "
        "split: published, which tests on them"
    )


# --- sources --------------------------------------------------------------------------------------


_KIND = "set of questions"

Text = Annotated[
    str, AfterValidator(lambda text: " ".join(text.split())), StringConstraints(min_length=1)
]
#: A list of the abstract's sections; a single text is one of them.
Texts = Annotated[
    list[Text],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(min_length=1),
]
Answer = Annotated[
    Label, BeforeValidator(lambda value: value.strip().lower() if isinstance(value, str) else value)
]


class _Row(BaseModel, loc_by_alias=False):
    """A row, whose fields have the names of the form for any set."""

    question: Text = Field(validation_alias=AliasChoices("QUESTION", "question"))
    context: Texts = Field(
        validation_alias=AliasChoices("CONTEXTS", AliasPath("context", "contexts"), "context")
    )
    ground_truth: Answer = Field(validation_alias=AliasChoices("final_decision", "ground_truth"))
    #: Without it an item has the key of its row, or its number.
    id: int | str | None = Field(None, validation_alias="pubid")
    sections: list[Text] | None = Field(
        None, validation_alias=AliasChoices("LABELS", AliasPath("context", "labels"))
    )
    #: What the abstract concludes: for the reward, never shown.
    conclusion: str | None = Field(
        None, validation_alias=AliasChoices("LONG_ANSWER", "long_answer")
    )

    @model_validator(mode="after")
    def _every_section_is_labelled(self) -> Self:
        if self.sections and len(self.sections) != len(self.context):
            numbers = f"{len(self.sections)} labels for {len(self.context)} sections"
            raise ValueError(f"the context has {numbers}")
        return self

    def item(self, row_id: str) -> Item:
        labels = self.sections or [""] * len(self.context)
        sections = (Section(*pair) for pair in zip(labels, self.context, strict=True))
        conclusion = " ".join((self.conclusion or "").split())
        name = row_id if self.id is None else str(self.id).strip()
        extra = {"conclusion": conclusion} if conclusion else {}
        return Item(name, self.question, tuple(sections), self.ground_truth, extra)


#: The location of a row, the id that follows from that, and what it holds.
_Located = tuple[str, str, Any]


def read_items(path: Path) -> list[Item]:
    """The items of a JSON file. Raises `DataError` with everything that is wrong."""
    problems: list[str] = []
    return _items(str(path), _rows(path, problems), problems)


def load_hub(name: str, subset: str) -> list[Item]:
    """The labelled items of a data set on the Hugging Face hub, or of a folder that mirrors it.

    Raises `ValueError` if it cannot be loaded.
    """
    is_local = is_folder_name(name)
    if is_local and not Path(name).is_dir():
        raise ValueError(
            f"there is no folder {name}: hub_name is a data set on the hub or a folder"
        )
    offline = None if is_local else offline_reason()  # before the import, which asks the client
    from datasets import load_dataset  # takes a second to import

    try:
        data_set = load_dataset(name, subset, split="train")
    except (OSError, ValueError, RuntimeError) as error:  # the last of a client that was closed
        reason = (
            f"is not on this machine, and {offline}"
            if offline
            else f"cannot be loaded{'' if is_local else ' from the Hugging Face hub'}: {error}"
        )
        raise ValueError(
            f"{name} ({subset}) {reason}. Without a network take source: file and path: "
            "ori_pqal.json from github.com/pubmedqa/pubmedqa"
        ) from error
    rows = [(f"row {n}", str(n), row) for n, row in enumerate(data_set, start=1)]
    return _items(name, rows, [])


def _rows(path: Path, problems: list[str]) -> list[_Located]:
    """The rows of an object, each with its key, or of a list, each with its number."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)  # `json` would silently keep the last one
        problems.extend(f"{key!r} is given {n} times" for key, n in counts.items() if n > 1)
        return dict(pairs)

    try:
        value = parse_json(read_source(path, _KIND), object_pairs_hook=once)
    except DataError:
        raise
    except ValueError as error:
        problems.append(str(error))
        return []
    if isinstance(value, dict):
        return [(f"key {key!r}", key, row) for key, row in value.items()]
    if isinstance(value, list):
        return [(f"item {n}", str(n), row) for n, row in enumerate(value, start=1)]
    problems.append("holds neither an object nor a list")
    return []


def _items(source: str, rows: Sequence[_Located], problems: list[str]) -> list[Item]:
    items: dict[str, Item] = {}
    for location, row_id, row in rows:
        try:
            item = _Row.model_validate(row).item(row_id)
        except ValidationError as error:
            problems.append(f"{location}: {row_faults(error)}")
            continue
        if item.id in items:
            problems.append(f"{location}: id {item.id!r} is there twice")
        items[item.id] = item
    if problems or not items:
        problems = problems or ["holds no questions"]
        raise DataError("pubmedqa.invalid-items", source, _KIND, problems)
    return list(items.values())
