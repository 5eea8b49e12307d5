"""The published split of PubMedQA's 1,000 labelled items, and the guard around its test items.

The procedure is that of `preprocess/split_dataset.py` in github.com/pubmedqa/pubmedqa: Python's
random numbers from seed 0; the ids of each label shuffled and cut in two, the second part the
test set; the first part cut in ten folds in the same way.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from data_prep.pubmedqa.items import LABELS, Item, normal_question

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


def leaked(items: Iterable[Item]) -> list[Item]:
    """Those items that are of the official test set."""
    return [item for item in items if is_official_test(item.id, item.question)]


def refuse_leaked(items: Sequence[Item]) -> None:
    """Raise `ValueError` with their count if any of these is an official test item."""
    leaks = leaked(items)
    if not leaks:
        return
    examples = ", ".join(item.id for item in leaks[:_EXAMPLES])
    raise ValueError(
        f"{len(leaks)} of {len(items)} questions are of the official PubMedQA test set ({examples}"
        f"{', ...' if len(leaks) > _EXAMPLES else ''}): nothing may be trained on them. Leave them "
        "out, or take all 1,000 labelled items (ori_pqal.json, or source: hub) with "
        "split: published, which tests on them"
    )
