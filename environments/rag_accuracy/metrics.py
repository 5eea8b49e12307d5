"""Accuracy, retrieval recall and format rate, as functions of sums over questions."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from environments.measurement import Direction, Mean, Measurement, measure_means

_METRICS: Mapping[str, Direction | None] = {
    "accuracy": "higher",
    "retrieval_recall": "higher",
    "format_rate": "higher",
    "defect_rate": "lower",
    "documents_read": None,
}


class Observation(BaseModel, extra="forbid", frozen=True):
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
    return measure_means(
        prompt_ids,
        {
            name: Mean([getattr(o, name) for o in observed], better, name == "accuracy")
            for name, better in _METRICS.items()
        },
    )
