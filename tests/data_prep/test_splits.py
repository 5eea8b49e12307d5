"""Whole sets in splits and samples: never cut, cut alike, the same whatever the order."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.splits import sample_sets, split_counts, split_sets, whole_sets
from environments.base import PromptRecord

FRACTIONS = {"train": 0.7, "validation": 0.1, "test": 0.2}


def records_of(sets_per_case, set_size=4):
    return [
        PromptRecord(f"{c}/{s}/{i}", "toy", (), f"{c}/{s}", "", {"case": f"case {c}"})
        for c, sets in enumerate(sets_per_case)
        for s in range(sets)
        for i in range(set_size)
    ]


def sets_by(records, *, split=None):
    """How many sets of each case, all or those of one split."""
    chosen = {(r.metadata["case"], r.set_id) for r in records if split in (None, r.split)}
    return Counter(case for case, _ in chosen)


shapes = st.lists(st.integers(1, 12), min_size=1, max_size=5).filter(lambda sets: sum(sets) >= 3)


@given(shapes, st.integers(0, 3), st.integers(1, 5), st.randoms(use_true_random=False))
def test_splits_cut_no_set_lose_no_record_and_know_no_order(sets, seed, size, shuffler):
    records = records_of(sets, size)
    found = split_sets(records, FRACTIONS, seed)
    assert [r.id for r in found] == [r.id for r in records]
    split_of = {r.set_id: r.split for r in found}
    assert all(split_of[r.set_id] == r.split for r in found)
    assert Counter(split_of.values()) == split_counts(sum(sets), FRACTIONS)
    shuffler.shuffle(records)
    assert {r.set_id: r.split for r in split_sets(records, FRACTIONS, seed)} == split_of


def test_every_case_is_cut_alike():
    found = split_sets(records_of([576] * 6), FRACTIONS, seed=0)
    for split, fraction in FRACTIONS.items():
        counts = sets_by(found, split=split)
        assert len(counts) == 6
        assert all(abs(n - fraction * 576) <= 1 for n in counts.values()), counts


@given(shapes, st.data(), st.integers(1, 5))
def test_a_sample_is_whole_sets_balanced_over_cases(sets, data, size):
    records = records_of(sets, size)
    wanted = data.draw(st.integers(1, sum(sets)))
    found = sample_sets(records, wanted * size, seed=1)
    assert len(found) == wanted * size
    assert set(Counter(r.set_id for r in found).values()) == {size}
    taken = sets_by(found)
    for case, available in sets_by(records).items():
        assert taken[case] >= min(available, max(taken.values()) - 1)


def test_a_sample_knows_no_order_and_grows_with_its_size():
    records = records_of([9, 9])
    shuffled = random.Random(0).sample(records, len(records))
    small = {r.id for r in sample_sets(records, 12, seed=3)}
    assert small == {r.id for r in sample_sets(shuffled, 12, seed=3)}
    assert small < {r.id for r in sample_sets(records, 40, seed=3)}
    assert small != {r.id for r in sample_sets(records, 12, seed=4)}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (50, "cuts a counterfactual set of 4: take 48 or 52"),
        (1, "take 4"),
        (0, "take 4"),
        (-4, "take 4"),
        (79, "take 76 or 80"),
        (84, "num_samples 84 is more than there are: at most 80"),
        (81, "more than there are: at most 80"),
    ],
)
def test_an_impossible_size_names_the_nearest_one(wanted, said):
    with pytest.raises(ValueError, match=said):
        sample_sets(records_of([20]), wanted, seed=0)
    with pytest.raises(ValueError, match=said):
        whole_sets(wanted, set_size=4, available=20)


def test_sets_of_different_sizes_cannot_be_sampled():
    with pytest.raises(ValueError, match=r"\[3, 4\] records"):
        sample_sets(records_of([2])[:-1], 4, seed=0)
