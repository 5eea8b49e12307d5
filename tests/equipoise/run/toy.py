"""A task whose replies are right, wrong or cannot be scored, and a model that writes some."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

from environments.base import Failure, Rollout, Score
from environments.contract import Environment
from environments.measurement import Measurement, Metric
from equipoise.commands.stages import run_stages

EMPTY = Failure("verifier_error", "empty")


class Toy(Environment):
    """Right or wrong; cannot score an empty reply."""

    name, scope = "toy", "rollout"

    def score(self, rollouts):
        return [
            Score(float(r.completion == r.metadata["gold"]))
            if r.completion
            else Score(None, error=EMPTY)
            for r in rollouts
        ]

    def measure(self, rollouts, scores):
        sums = np.array([[s.value or 0.0, s.value is not None] for s in scores], dtype=float)
        rate = Metric(lambda total: total[..., 0] / total[..., 1], "higher")
        return Measurement(tuple(r.prompt_id for r in rollouts), sums, {"accuracy": rate})


class Model:
    """Replies with `reply` to what it sees, with `blind` where it sees nothing.

    At temperature 0 it replies with `greedy`. It remembers what it was asked.
    """

    def __init__(self, reply="A", blind="nothing", greedy=""):
        self.reply, self.blind, self.greedy = reply, blind, greedy or reply
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, records, generations, stage):
        self.asked.append((stage, len(records), generations))
        return [
            Rollout(r.id, r.set_id, r.split, "<Q>", self._reply(r.messages, stage))
            for r in records
            for _ in range(generations)
        ]

    def _reply(self, messages, stage):
        if stage == "greedy":
            return self.greedy
        return self.blind if messages[-1]["content"] == "blind" else self.reply


def before_training(job, model):
    policy = SimpleNamespace(steps=0, sampler=lambda: model)
    run_stages(job, lambda: nullcontext(policy), probe_only=True)
