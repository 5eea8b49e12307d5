import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import PromptRecord
from equipoise.config.schedule import plan, prompts_in_rounds


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


def mixed(sets: dict[str, tuple[int, int]]) -> list[PromptRecord]:
    return [
        PromptRecord(f"{task}/{s}/{v}", task, (), f"{task}/{s}", "train")
        for task, (number, size) in sets.items()
        for s in range(number)
        for v in range(size)
    ]


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(0, 99)
)
def test_every_step_of_a_mixture_has_as_many_prompts_of_each_task(
    rounds, sets, singles, steps, seed
):
    data = mixed({"sets": (11, 4), "singles": (9, 1)})
    parts = {"sets": 4 * sets, "singles": singles}
    per_step = rounds * sum(parts.values())
    order = plan(data, per_step, steps, seed, parts)
    assert len(order) == per_step * steps
    for start in range(0, len(order), per_step):
        step = [data[index] for index in order[start : start + per_step]]
        assert len({record.id for record in step}) == per_step
        for task, prompts in parts.items():
            assert sum(record.task == task for record in step) == rounds * prompts
        complete = [record.set_id for record in step if record.task == "sets"]
        assert all(complete.count(name) == 4 for name in complete)
        assert all(len(set(complete[n : n + 4])) == 1 for n in range(0, len(complete), 4))


def test_a_task_of_a_mixture_passes_over_its_prompts_as_it_would_alone():
    data = mixed({"many": (20, 1), "few": (3, 1)})
    order = plan(data, 4, 9, 5, {"many": 2, "few": 2})
    of_few = [data[index].id for index in order if data[index].task == "few"]
    alone = mixed({"few": (3, 1)})
    assert of_few == [alone[index].id for index in plan(alone, 2, 9, 5)]
    assert len(set(of_few)) == 3  # a small task comes again, the large one is not cut to it
    assert len({data[index].id for index in order if data[index].task == "many"}) > 3


def test_a_step_of_a_mixture_that_is_no_whole_rounds_is_refused():
    with pytest.raises(ValueError, match="whole rounds"):
        plan(mixed({"a": (9, 1), "b": (9, 1)}), 5, 1, 0, {"a": 1, "b": 1})


def test_the_task_with_fewest_prompts_bounds_a_step_of_a_mixture():
    data = mixed({"a": (9, 4), "b": (5, 1)})
    assert prompts_in_rounds(data, {"a": 4, "b": 2}) == 12
