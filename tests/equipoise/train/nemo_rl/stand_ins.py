"""Stand-ins for the interface of NeMo-RL, for tests that run without a checkout of it.

Each names what it stands for, of v0.7.0 and main. It does what that does, faults included, for a
fault of NeMo-RL's that Equipoise works around is what the tests are about. That those faults are
there still is checked in tests/contract/test_nemo_rl_stand_ins.py; what NeMo-RL itself makes of
Equipoise, in the other tests there.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from equipoise.train import nemo_rl
from equipoise.train.nemo_rl import process


class EnvironmentReturn(NamedTuple):
    """`nemo_rl.environments.interfaces.EnvironmentReturn`."""

    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[Any]
    rewards: torch.Tensor
    terminateds: torch.Tensor
    answers: list[str | None] | None


class EnvironmentInterface:
    """`nemo_rl.environments.interfaces.EnvironmentInterface`."""


def modules() -> dict[str, ModuleType]:
    """Modules of NeMo-RL that are imported, and their parent packages, for `sys.modules`."""
    held = {
        "nemo_rl.environments.interfaces": (EnvironmentInterface, EnvironmentReturn),
    }
    parts = [name.split(".") for name in held]
    packages = {".".join(names[:n]) for names in parts for n in range(1, len(names))}
    made = {name: ModuleType(name) for name in sorted(packages | held.keys())}
    for name, classes in held.items():
        for one in classes:
            setattr(made[name], one.__name__, one)
    return made


def import_ours(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """Our module of that name with these in place of NeMo-RL, as long as `patch` holds."""
    for theirs, stand_in in modules().items():
        patch.setitem(sys.modules, theirs, stand_in)
    patch.setattr(process, "before_nemo_rl", lambda: None)
    module = f"{nemo_rl.__name__}.{name}"  # with NeMo-RL itself it is another one
    patch.setitem(sys.modules, module, None)
    patch.delitem(sys.modules, module)
    patch.setattr(nemo_rl, name, None, raising=False)
    return import_module(module)


def scheduler_of(
    optimizer: torch.optim.Optimizer, entries: Sequence[Mapping[str, Any]]
) -> torch.optim.lr_scheduler.SequentialLR:
    """The scheduler of `nemo_rl.models.automodel.setup.setup_model_and_optimizer` of a list.

    Without an entry of milestones that name is unbound, there as here.
    """
    chain = []
    for entry in entries:
        if "name" in entry:
            module, _, name = entry["name"].rpartition(".")
            chain.append(getattr(import_module(module), name)(optimizer, **entry["kwargs"]))
        else:
            milestones = entry["milestones"]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, chain, milestones)


class Worker:
    """`nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2`.

    It loads a checkpoint first and then copies the reference from what it has loaded. Its weights
    are one tensor, and a checkpoint is a file of it.
    """

    def __init__(self, weights_path: str | None = None, optimizer_path: str | None = None) -> None:
        self.weights, self.optimizer_path = torch.zeros(2), None
        if weights_path:
            self.load_checkpoint(weights_path, optimizer_path)
        self.reference_model_state_dict = {"weights": self.weights.clone()}

    def load_checkpoint(self, weights_path: str, optimizer_path: str | None = None) -> None:
        assert Path(weights_path).is_absolute(), "a worker has its own working directory"
        self.weights, self.optimizer_path = torch.load(weights_path), optimizer_path


class Handle:
    """A Ray actor's: `handle.method.remote(...)`, and what calls a function on the actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> SimpleNamespace:
        if name == "__ray_call__":
            return SimpleNamespace(remote=lambda fn: fn(self.actor))
        return SimpleNamespace(remote=partial(getattr(self.actor, name)))


class Policy:
    """`nemo_rl.models.policy.lm_policy.Policy`, of one worker."""

    def __init__(
        self,
        cluster: Any,
        config: Mapping[str, Any],
        tokenizer: Any,
        weights_path: Path | None = None,
        optimizer_path: Path | None = None,
    ) -> None:
        paths = [str(Path(p).absolute()) if p else None for p in (weights_path, optimizer_path)]
        self.worker_group = SimpleNamespace(workers=[Handle(Worker(*paths))])

    @property
    def worker(self) -> Worker:
        """For the tests alone."""
        return self.worker_group.workers[0].actor
