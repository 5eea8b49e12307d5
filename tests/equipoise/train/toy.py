"""A task whose replies are right, wrong or cannot be scored."""

import numpy as np

from environments.base import Failure, Score
from environments.contract import Environment
from environments.measurement import Measurement, Metric

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
