"""Accuracy, retrieval recall and format rate, as functions of sums over questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from environments.measurement import Array, Direction, Measurement, Metric

# The columns of the sums: each metric's total and the number of rollouts that it is defined on.
_METRICS: Mapping[str, Direction | None] = {
    "accuracy": "higher",
    "retrieval_recall": "higher",
    "format_rate": "higher",
    "defect_rate": "lower",
    "documents_read": None,
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What one rollout shows; None where that is not known or does not apply."""

    accuracy: float | None = None
    retrieval_recall: float | None = None
    format_rate: float | None = None
    defect_rate: float | None = None
    documents_read: float | None = None


def measure(prompt_ids: Sequence[str], observed: Sequence[Observation]) -> Measurement:
    """The metrics over rollouts; NaN where no rollout shows one.

    A question is right for McNemar's test if more than half of its answered rollouts are: with one
    generation, if that one is.
    """
    clusters = tuple(dict.fromkeys(prompt_ids))
    at = {name: row for row, name in enumerate(clusters)}
    rows = np.array([at[name] for name in prompt_ids], dtype=np.intp)
    sums = np.zeros((len(clusters), 2 * len(_METRICS)))
    np.add.at(sums, rows, _columns(observed))
    right = sums[:, 0] > sums[:, 1] / 2
    metrics = {
        name: Metric(partial(_mean, n), better, outcomes=right if name == "accuracy" else None)
        for n, (name, better) in enumerate(_METRICS.items())
    }
    return Measurement(clusters, sums, metrics)


def _columns(observed: Sequence[Observation]) -> Array:
    """Value and 1 for each metric that a rollout shows, else twice 0, [N, 2 M]."""
    found = np.array([[getattr(o, name) for name in _METRICS] for o in observed], dtype=np.float64)
    found = found.reshape(len(observed), len(_METRICS))
    known = np.isfinite(found)
    pairs = np.stack([np.where(known, found, 0.0), known], axis=-1)
    return pairs.reshape(len(observed), 2 * len(_METRICS))


def _mean(metric: int, sums: Array) -> Array:
    total, number = sums[..., 2 * metric], sums[..., 2 * metric + 1]
    undefined = np.full(np.shape(total), np.nan)
    return np.asarray(np.divide(total, number, out=undefined, where=number > 0))
