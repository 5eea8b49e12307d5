import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import PromptRecord
from equipoise.config.schedule import plan


def records(sets: int, size: int) -> list[PromptRecord]:
    return [
        PromptRecord(f"{s}/{v}", "task", (), f"set{s}", "train")
        for s in range(sets)
        for v in range(size)
    ]


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 12), st.integers(1, 9), st.integers())
def test_every_step_holds_whole_sets_and_none_twice(sets, size, sets_per_step, steps, seed):
    sets_per_step = min(sets, sets_per_step)
    data = records(sets, size)
    order = plan(data, sets_per_step * size, steps, abs(seed))
    assert len(order) == sets_per_step * size * steps
    for start in range(0, len(order), size):
        members = order[start : start + size]
        assert len({data[i].set_id for i in members}) == 1
    for start in range(0, len(order), sets_per_step * size):
        step = order[start : start + sets_per_step * size]
        assert len(set(step)) == len(step)


def test_every_set_is_used_once_before_any_is_used_again():
    order = plan(records(6, 2), 4, 6, seed=3)
    assert sorted(order[:12]) == sorted(order[12:24]) == list(range(12))
    assert order[:12] != order[12:24]


def test_the_seed_decides_and_a_longer_run_begins_alike():
    data = records(10, 4)
    assert plan(data, 8, 5, seed=1) == plan(data, 8, 9, seed=1)[:40]
    assert plan(data, 8, 5, seed=1) != plan(data, 8, 5, seed=2)


def test_a_step_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="more than the 3 there are"):
        plan(records(3, 4), 16, 2, seed=0)


def test_a_step_that_would_break_a_set_is_refused():
    with pytest.raises(ValueError, match="whole sets of 4"):
        plan(records(3, 4), 6, 2, seed=0)
    with pytest.raises(ValueError, match="whole sets"):
        plan([*records(3, 4), PromptRecord("x", "task", (), "lonely", "train")], 8, 2, seed=0)
