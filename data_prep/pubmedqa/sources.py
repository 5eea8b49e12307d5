"""Items from a JSON file or from the Hugging Face hub: all that is wrong is said at once.

Three forms are known by their fields: the official `ori_pqal.json` (an object, pmid -> row), the
hub's rows, and rows of question, context and ground_truth, the form for any other set.
"""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from data_prep.hub import is_folder_name, offline_reason
from data_prep.pubmedqa.items import LABELS, Item, Section, normal_question
from data_prep.text_files import DataError, parse_json, read_source

# --- published ------------------------------------------------------------------------------------
# The published split of PubMedQA's 1,000 labelled items, and the guard around its test items.
#
# The procedure is that of `preprocess/split_dataset.py` in github.com/pubmedqa/pubmedqa: Python's
# random numbers from seed 0; the ids of each label shuffled and cut in two, the second part the
# test set; the first part cut in ten folds in the same way.


SEED, FOLDS = 0, 10
#: How many questions a message names.
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class PublishedSplit:
    """Ids: ten folds to train and validate on, and the official test set."""

    folds: tuple[tuple[str, ...], ...]
    test: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Hashes of the ids and of the normalised questions of the official test items."""

    ids: frozenset[str]
    questions: frozenset[str]


def published_split(gold: Mapping[str, str]) -> PublishedSplit:
    """Split ids by their labels; `gold` is in the order of the published file.

    Raises `ValueError` unless the result is the official test set.
    """
    rng = random.Random(SEED)  # noqa: S311
    development, test = _parts(list(gold), gold, 2, rng)
    official = official_fingerprints().ids
    of_test = {fingerprint(item) for item in test}
    if of_test != official:
        raise ValueError(
            f"the published procedure gives a test set that shares {len(of_test & official)} of "
            f"the {len(official)} official items: it needs all 1,000 labelled items in their "
            "published order (ori_pqal.json); take split: random for any other set"
        )
    folds = _parts(development, gold, FOLDS, rng)
    return PublishedSplit(tuple(map(tuple, folds)), tuple(test))


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
    """The start of a text's SHA-256, 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def official_fingerprints() -> Fingerprints:
    """From `official_test.txt`: a line per test item, the hash of its pmid and of its question."""
    text = (files(__package__) / "official_test.txt").read_text(encoding="utf-8")
    pairs = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return Fingerprints(frozenset(p[0] for p in pairs), frozenset(p[1] for p in pairs))


def is_official_test(item_id: str, question: str) -> bool:
    """Whether this is an item of the official test set, by its id or by its question's words."""
    official = official_fingerprints()
    return (
        fingerprint(item_id) in official.ids
        or fingerprint(normal_question(question)) in official.questions
    )


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


@dataclass(frozen=True, slots=True)
class _Form:
    """The keys that hold an item's parts in a row; a dot enters an object: `context.contexts`."""

    question: str
    context: str  # a text, or a list of the abstract's sections
    label: str
    id: str = ""  # without it an item has the key of its row, or its number
    sections: str = ""  # a list of the sections' labels
    conclusion: str = ""  # what the abstract concludes: for the reward, never shown


_OFFICIAL = _Form(
    question="QUESTION",
    context="CONTEXTS",
    label="final_decision",
    sections="LABELS",
    conclusion="LONG_ANSWER",
)
_HUB = _Form(
    question="question",
    context="context.contexts",
    label="final_decision",
    id="pubid",
    sections="context.labels",
    conclusion="long_answer",
)
_PLAIN = _Form(question="question", context="context", label="ground_truth")


class _BadRowError(ValueError):
    """A faulty row; the message says why."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a set: its location, the id that follows from that, and what it holds."""

    location: str
    id: str
    value: Any


def read_items(path: Path) -> list[Item]:
    """The items of a JSON file. Raises `DataError` with everything that is wrong."""
    problems: list[str] = []
    return _items(str(path), _rows(path, problems), problems)


def has_published_form(path: Path) -> bool:
    """Whether a file's rows may be PubMedQA's own; True too for a file that cannot be read.

    Rows of question, context and ground_truth are of another set.
    """
    try:
        return _known_form(_rows(path, [])) is not _PLAIN
    except DataError:
        return True


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
    rows = [_Row(f"row {n}", str(n), row) for n, row in enumerate(data_set, start=1)]
    return _items(name, rows, [])


def _rows(path: Path, problems: list[str]) -> list[_Row]:
    """The rows of an object, each with its key, or of a list, each with its number."""
    try:
        value = parse_json(read_source(path, _KIND), object_pairs_hook=_Pairs)
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        problems.append(str(error))
        return []
    if isinstance(value, _Pairs):
        return [_Row(f"key {key!r}", key, row) for key, row in value]
    if isinstance(value, list):
        return [_Row(f"item {n}", str(n), row) for n, row in enumerate(value, start=1)]
    problems.append("holds neither an object nor a list")
    return []


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs: `json` would silently keep the last of two equal keys."""


def _items(source: str, rows: Sequence[_Row], problems: list[str]) -> list[Item]:
    form = _known_form(rows)
    if form is None:
        raise DataError("pubmedqa.no-items", source, _KIND, problems or [_unknown_form(rows)])
    items: list[Item] = []
    place_of: dict[str, str] = {}
    for row in rows:
        try:
            item = _item(row, form)
        except _BadRowError as error:
            problems.append(f"{row.location}: {error}")
            continue
        if item.id in place_of:
            problems.append(f"{row.location}: id {item.id!r} is that of {place_of[item.id]} too")
        place_of.setdefault(item.id, row.location)
        items.append(item)
    if problems:
        raise DataError("pubmedqa.invalid-items", source, _KIND, problems)
    return items


def _known_form(rows: Sequence[_Row]) -> _Form | None:
    """The form that the first readable row has question and label of."""
    for row in rows:
        for form in (_OFFICIAL, _HUB, _PLAIN):
            if {form.question, form.label} <= set(_keys(row.value)):
                return form
    return None


def _unknown_form(rows: Sequence[_Row]) -> str:
    if not rows:
        return "holds no questions"
    keys = ", ".join(map(str, _keys(rows[0].value)[:10])) or "no keys"
    return f"its rows have {keys}: name them question, context and ground_truth"


def _keys(value: Any) -> list[str]:
    return [key for key, _ in value] if isinstance(value, _Pairs) else list(_mapping(value))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _item(row: _Row, form: _Form) -> Item:
    """The item of a row. Raises `_BadRowError` with everything that is wrong with it."""
    problems: list[str] = []
    question = _text(_value_at(row.value, form.question), form.question, problems)
    texts = _texts(_value_at(row.value, form.context), form.context, problems)
    names = _section_labels(row.value, form, texts, problems)
    gold = _gold(_value_at(row.value, form.label), form.label, problems)
    name = _id(_value_at(row.value, form.id), form.id, problems) if form.id else row.id
    conclusion = _value_at(row.value, form.conclusion) if form.conclusion else None
    extra = {}
    if conclusion not in (None, ""):
        extra["conclusion"] = _text(conclusion, form.conclusion, problems)
    if problems:
        raise _BadRowError("; ".join(problems))
    sections = [Section(label, text) for label, text in zip(names, texts, strict=True)]
    return Item(name, question, tuple(sections), gold, extra)


def _value_at(value: Any, path: str) -> Any:
    """The value at a dotted path; None if the path leads nowhere."""
    for key in path.split("."):
        if isinstance(value, _Pairs):
            values = [item for name, item in value if name == key]
            if len(values) > 1:
                raise _BadRowError(f"{key} is given twice")
            value = values[0] if values else None
        else:
            value = _mapping(value).get(key)
    return value


def _text(value: Any, name: str, problems: list[str]) -> str:
    if isinstance(value, str) and value.strip():
        return " ".join(value.split())
    problems.append(f"{name} is {_description(value)}")
    return ""


def _texts(value: Any, name: str, problems: list[str]) -> list[str]:
    """The abstract's sections; a single text is one section."""
    listed = value if isinstance(value, list) and not isinstance(value, _Pairs) else [value]
    if not listed:
        problems.append(f"{name} is empty")
    return [_text(item, name, problems) for item in listed]


def _section_labels(
    value: Any, form: _Form, texts: Sequence[str], problems: list[str]
) -> list[str]:
    """A label for each section; empty ones where the row has none or no sections to label."""
    raw_labels = _value_at(value, form.sections) if form.sections else None
    if raw_labels is None or not all(texts):
        return [""] * len(texts)
    labels = _texts(raw_labels, form.sections, problems) if raw_labels else []
    if len(labels) != len(texts):
        problems.append(f"{form.sections} has {len(labels)} labels for {len(texts)} sections")
        return [""] * len(texts)
    return labels


def _gold(value: Any, name: str, problems: list[str]) -> str:
    if not isinstance(value, str):
        problems.append(f"{name} is {_description(value)}")
    elif (label := value.strip().lower()) in LABELS:
        return label
    else:
        problems.append(f"{name} is {value[:40]!r}, not one of {', '.join(LABELS)}")
    return ""


def _id(value: Any, name: str, problems: list[str]) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
        return str(value).strip()
    problems.append(f"{name} is {_description(value)}")
    return ""


def _description(value: Any) -> str:
    """Describe a value that is not text."""
    if value is None:
        return "missing"
    if isinstance(value, _Pairs | Mapping):
        return "an object, not a text"
    if isinstance(value, str) or value == []:
        return "empty"
    return f"{str(value)[:40]!r}, not a text"
