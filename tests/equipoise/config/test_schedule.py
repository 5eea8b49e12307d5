import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from environments.base import PromptRecord
from equipoise.config import load_config
from equipoise.config.schedule import Schedule, learning_rates, plan
from equipoise.config.words import parse_flags


def records(sets, size):
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


LINEAR = "{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 1.0, end_factor: 0.0,"
COSINE = "{name: torch.optim.lr_scheduler.CosineAnnealingLR, kwargs: {T_max: "
WARM_UP = "{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.25, total_iters: 3}}"


def policy(*scheduler):
    words = [f"policy.scheduler=[{', '.join(scheduler)}]"] if scheduler else []
    return load_config("fairness", parse_flags("x", [*words, "--learning-rate=1e-3"])).config.policy


def linear(steps):
    return policy(f"{LINEAR} total_iters: {steps}}}}}")


CHAIN = (WARM_UP, f"{COSINE} 7}}}}", "{milestones: [3]}")


def trained(schedule, steps):
    """The rates that training sees, one update after the other."""
    rates = []
    for _ in range(steps):
        rates.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.scheduler.step()
    return rates


@pytest.mark.parametrize("chosen", [linear(10), policy(*CHAIN)], ids=["linear", "a chain"])
@pytest.mark.parametrize("step", [0, 3, 9])
def test_a_run_that_went_on_has_the_same_bits_as_one_that_was_never_stopped(chosen, step):
    whole = trained(Schedule.of(torch.nn.Linear(1, 1), chosen), 10)
    assert learning_rates(chosen, 10) == whole
    resumed = Schedule.of(torch.nn.Linear(1, 1), chosen)
    resumed.go_to(step)
    assert trained(resumed, 10 - step) == whole[step:]


def test_a_longer_run_takes_the_schedule_of_its_whole_length(tmp_path):
    """Whatever the checkpoint holds: here the end of a shorter one, at rate 0."""
    short = Schedule.of(torch.nn.Linear(1, 1), linear(4))
    trained(short, 4)
    assert short.optimizer.param_groups[0]["lr"] == 0
    long = Schedule.of(torch.nn.Linear(1, 1), linear(8))
    long.optimizer.load_state_dict(short.optimizer.state_dict())
    long.scheduler.load_state_dict(short.scheduler.state_dict())
    long.go_to(4)
    assert trained(long, 4) == learning_rates(linear(8), 8)[4:]
    assert learning_rates(linear(8), 8)[4:] == pytest.approx([5e-4, 3.75e-4, 2.5e-4, 1.25e-4])
