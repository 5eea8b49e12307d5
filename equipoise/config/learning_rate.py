"""The optimizer and its schedule of learning rates, from torch, by the configuration's names."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from equipoise.config.schema import PolicyConfig
from equipoise.files.errors import UsageError


@dataclass(frozen=True, slots=True)
class Schedule:
    """An optimizer and its chain of schedulers; the rate of a step depends on its number alone."""

    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    start: Mapping[str, Any]  # the scheduler's state before the first step
    first_rates: tuple[float, ...]  # of the optimizer's groups

    @classmethod
    def of(cls, model: torch.nn.Module, policy: PolicyConfig) -> "Schedule":
        """The optimizer and the chain of schedulers of `policy`, for what is trained of a model."""
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = _torch_class(policy.optimizer.name)(trainable, **policy.optimizer.kwargs)
        entries = policy.scheduler or []
        chain = [
            _torch_class(entry["name"])(optimizer, **entry.get("kwargs", {}))
            for entry in entries
            if "name" in entry
        ]
        schedulers = torch.optim.lr_scheduler
        milestones = next((entry["milestones"] for entry in entries if "milestones" in entry), [])
        scheduler: torch.optim.lr_scheduler.LRScheduler
        if len(chain) > 1:
            scheduler = schedulers.SequentialLR(optimizer, chain, milestones)
        else:
            constant = schedulers.ConstantLR(optimizer, factor=1.0, total_iters=1)
            scheduler = chain[0] if chain else constant
        rates = tuple(group["lr"] for group in optimizer.param_groups)
        return cls(optimizer, scheduler, deepcopy(scheduler.state_dict()), rates)

    def go_to(self, step: int) -> None:
        """Set the rate that follows `step` steps, whatever was loaded before."""
        self.scheduler.load_state_dict(deepcopy(dict(self.start)))
        for group, rate in zip(self.optimizer.param_groups, self.first_rates, strict=True):
            group["lr"] = rate
        with _no_updates():
            for _ in range(step):
                self.scheduler.step()


def learning_rates(policy: PolicyConfig, steps: int) -> list[float]:
    """The rate of each of the first `steps` steps."""
    schedule = Schedule.of(torch.nn.Linear(1, 1), policy)
    rates = []
    with _no_updates():
        for _ in range(steps):
            rates.append(float(schedule.optimizer.param_groups[0]["lr"]))
            schedule.scheduler.step()
    return rates


@contextmanager
def _no_updates() -> Iterator[None]:
    """Let a scheduler step without an update before each step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _torch_class(name: str) -> Any:
    """A class below torch.optim by its full name, as NeMo-RL's configuration writes it."""
    prefix, _, last = name.rpartition(".")
    modules: Mapping[str, Any] = {
        "torch.optim": torch.optim,
        "torch.optim.lr_scheduler": torch.optim.lr_scheduler,
    }
    if prefix not in modules or not hasattr(modules[prefix], last):
        raise UsageError(
            "config.unknown-optimizer",
            f"policy: there is no optimizer or scheduler {name}",
            "Name a class of torch.optim or torch.optim.lr_scheduler.",
        )
    return getattr(modules[prefix], last)
