"""The rate of a step is a function of the configuration and the step alone."""

import pytest
import torch

from equipoise.config import load_config
from equipoise.config.schedule import Schedule, learning_rates
from equipoise.config.schema import PolicyConfig
from equipoise.config.words import parse_flags

LINEAR = "{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 1.0, end_factor: 0.0,"
COSINE = "{name: torch.optim.lr_scheduler.CosineAnnealingLR, kwargs: {T_max: "
WARM_UP = "{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.25, total_iters: 3}}"


def policy(*scheduler: str) -> PolicyConfig:
    words = [f"policy.scheduler=[{', '.join(scheduler)}]"] if scheduler else []
    return load_config("fairness", parse_flags("x", [*words, "--learning-rate=1e-3"])).config.policy


def linear(steps: int) -> PolicyConfig:
    return policy(f"{LINEAR} total_iters: {steps}}}}}")


CHAIN = (WARM_UP, f"{COSINE} 7}}}}", "{milestones: [3]}")


def trained(schedule: Schedule, steps: int) -> list[float]:
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
