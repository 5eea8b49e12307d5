"""Stand-ins for the interface of NeMo-RL, for tests that run without a checkout of it.

Each names what it stands for, of v0.7.0 and main. It does what that does, faults included, for a
fault of NeMo-RL's that Equipoise works around is what the tests are about. That those faults are
there still is checked in tests/contract/test_nemo_rl_stand_ins.py; what NeMo-RL itself makes of
Equipoise, in the other tests there.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch


class Worker:
    """`nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2`.

    It loads a checkpoint first and then copies the reference from what it has loaded. Its weights
    are one tensor, and a checkpoint is a file of it.
    """

    def __init__(self, weights_path=None, optimizer_path=None):
        self.weights, self.optimizer_path = torch.zeros(2), None
        if weights_path:
            self.load_checkpoint(weights_path, optimizer_path)
        self.reference_model_state_dict = {"weights": self.weights.clone()}

    def load_checkpoint(self, weights_path, optimizer_path=None):
        assert Path(weights_path).is_absolute(), "a worker has its own working directory"
        self.weights, self.optimizer_path = torch.load(weights_path), optimizer_path


class Handle:
    """A Ray actor's: `handle.method.remote(...)`, and what calls a function on the actor."""

    def __init__(self, actor):
        self.actor = actor

    def __getattr__(self, name):
        if name == "__ray_call__":
            return SimpleNamespace(remote=lambda fn: fn(self.actor))
        return SimpleNamespace(remote=partial(getattr(self.actor, name)))


class Policy:
    """`nemo_rl.models.policy.lm_policy.Policy`, of one worker."""

    def __init__(self, cluster, config, tokenizer, weights_path=None, optimizer_path=None):
        paths = [str(Path(p).absolute()) if p else None for p in (weights_path, optimizer_path)]
        self.worker_group = SimpleNamespace(workers=[Handle(Worker(*paths))])

    @property
    def worker(self):
        """For the tests alone."""
        return self.worker_group.workers[0].actor
