"""Choose whole counterfactual sets, and assign each to a split.

A set is never cut. Sets are ranked within their stratum (the clinical case) by a hash of the seed
and their id, so that nothing depends on the order of the records or on a library's random
numbers, and a smaller sample is part of every larger one with the same seed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from environments.base import PromptRecord
from equipoise.files.disk import seeded_digest

Item = TypeVar("Item")


class Fractions(BaseModel, extra="forbid", frozen=True):
    """The share of the counterfactual sets in each split; they sum to 1."""

    train: float = Field(default=0.7, gt=0, description="of the sets")
    validation: float = Field(default=0.1, gt=0, description="of the sets")
    test: float = Field(default=0.2, gt=0, description="of the sets")

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the fractions sum to {total:g}, not to 1")
        return self


def one_of(items: Sequence[Item], rng: np.random.Generator) -> Item:
    return items[int(rng.integers(len(items)))]


def sample_names(names: Iterable[str], number: int | None, seed: int) -> set[str]:
    """Choose `number` of the names, or all for None; a smaller choice is part of a larger one."""
    return set(sorted(names, key=lambda name: seeded_digest(seed, name))[:number])


def sample_sets(
    records: Sequence[PromptRecord], num_samples: int, seed: int, stratum: str = "case"
) -> list[PromptRecord]:
    """`num_samples` records as whole sets, as many of each stratum as can be, in their order.

    Raises `ValueError` where `whole_sets` does, or if the sets differ in size.
    """
    sizes = Counter(record.set_id for record in records)
    if len(set(sizes.values())) != 1:
        raise ValueError(f"the sets have {sorted(set(sizes.values()))} records, not all the same")
    number = whole_sets(num_samples, next(iter(sizes.values())), len(sizes))
    # A ranked set starts with its rank: the first of every stratum, then the second of every ...
    set_ids = {set_id for _, _, set_id in sorted(_ranked(records, seed, stratum))[:number]}
    return [record for record in records if record.set_id in set_ids]


def split_sets(
    records: Sequence[PromptRecord],
    fractions: Mapping[str, float],
    seed: int,
    stratum: str = "case",
) -> list[PromptRecord]:
    """The records with their split, whole sets in one split and every stratum cut alike.

    Raises `ValueError` if there are fewer sets than splits.
    """
    ranked = _ranked(records, seed, stratum)
    labels = _spread(split_counts(len(ranked), fractions))
    split_of = {set_id: label for (_, _, set_id), label in zip(ranked, labels, strict=True)}
    return [replace(record, split=split_of[record.set_id]) for record in records]


def whole_sets(num_samples: int, set_size: int, available: int) -> int:
    """Convert `num_samples` records into sets. Raises `ValueError` with the nearest valid number.

    `available` is the number of sets.
    """
    capacity = set_size * available
    if num_samples > capacity:
        raise ValueError(
            f"num_samples {num_samples:,} is more than there are: at most {capacity:,}"
        )
    below = num_samples // set_size * set_size
    if below != num_samples or num_samples <= 0:
        valid = [n for n in (below, below + set_size) if 0 < n <= capacity] or [set_size]
        nearest = " or ".join(f"{n:,}" for n in valid)
        raise ValueError(
            f"num_samples {num_samples:,} cuts a counterfactual set of {set_size}: take {nearest}"
        )
    return num_samples // set_size


def split_counts(sets: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """Sets per split: one each, each further one to the split furthest below its fraction."""
    if sets < len(fractions):
        raise ValueError(
            f"{len(fractions)} questions or sets are needed at least, one for each of "
            f"{', '.join(fractions)}, and there are {sets}"
        )
    counts = dict.fromkeys(fractions, 1)
    for _ in range(sets - len(counts)):
        counts[max(counts, key=lambda split: fractions[split] * sets - counts[split])] += 1
    return counts


def _spread(counts: Mapping[str, int]) -> Iterator[str]:
    """Repeat each split `counts` times, spread evenly, so that any stretch is divided alike."""
    total = sum(counts.values())
    tally = dict.fromkeys(counts, 0)
    for position in range(1, total + 1):
        label = max(counts, key=lambda split: counts[split] * position - tally[split] * total)
        tally[label] += 1
        yield label


def _ranked(records: Sequence[PromptRecord], seed: int, stratum: str) -> list[tuple[int, str, str]]:
    """List (rank within its stratum, stratum, set id) of every set, stratum by stratum."""
    strata: dict[str, set[str]] = defaultdict(set)
    for record in records:
        strata[str(record.metadata[stratum])].add(record.set_id)
    return [
        (rank, name, set_id)
        for name, set_ids in sorted(strata.items())
        for rank, set_id in enumerate(sorted(set_ids, key=lambda s: seeded_digest(seed, s)))
    ]
