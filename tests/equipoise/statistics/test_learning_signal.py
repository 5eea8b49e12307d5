"""The frozen model's generations predict the learning signal of training."""

from collections.abc import Sequence

import pytest

from environments.base import UNPARSEABLE, Failure, Rollout, Score
from equipoise.statistics.evaluation import LearningSignal, learning_signal

BROKEN = {UNPARSEABLE: "no JSON"}


def signal(groups: Sequence[Sequence[float | None]], broken: int = 0) -> LearningSignal:
    """Of one group of rewards per prompt; the first `broken` replies cannot be read."""
    rollouts = [
        Rollout(f"p{i}", "s", "test", "Q", f"reply {value}")
        for i, values in enumerate(groups)
        for value in values
    ]
    values = [value for group in groups for value in group]
    down = Failure("server_error", "down")
    scores = [
        Score(v, {}, down if v is None else None, BROKEN if n < broken else {})
        for n, v in enumerate(values)
    ]
    return learning_signal(rollouts, scores)


def test_ties_are_counted_by_prompt():
    found = signal([(1, 1), (0, 1), (0, 0), (0.1 + 0.2, 0.3)])
    assert (found.groups, found.tied) == (4, 0.75)
    assert found.spread == pytest.approx(0.125)
    assert not found.none
    assert signal([(1, 1), (0, 0)]).none
    assert signal([(1, None, 1), (None, None)]).none, "what could not be scored is no reward"


@pytest.mark.parametrize(("second", "broken", "none"), [(1, 2, True), (1, 0, False), (0, 2, False)])
def test_one_generation_of_each_prompt_is_evidence_enough_where_none_is_read(second, broken, none):
    found = signal([(1,), (second,)], broken)
    assert found.none is none
    assert found.little
    assert str(found).startswith(("all", "not all"))


def test_a_long_reply_is_shown_by_its_beginning():
    rollout = Rollout("p", "s", "test", "Q", "word \n" * 10_000)
    shown = str(learning_signal([rollout], [Score(1.0)]).commonest[0])
    assert shown.startswith("1x, score 1: 'word word")
    assert len(shown) < 200
