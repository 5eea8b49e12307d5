import numpy as np
import pytest

from environments.base import Failure, PromptRecord, Score
from environments.contract import Environment
from environments.measurement import Measurement, Metric
from equipoise.run.history import step_row
from equipoise.train.local.reward import reward_function
from equipoise.train.stages.failures import FailureMonitor

RECORDS = [
    PromptRecord("a", "toy", ({"role": "user", "content": "A"},), "s", "train", {"gold": "1"}),
    PromptRecord("b", "toy", ({"role": "user", "content": "B"},), "s", "train", {"gold": "2"}),
]


class Toy(Environment):
    """Right or wrong; cannot score an empty reply."""

    name, scope = "toy", "rollout"

    def score(self, rollouts):
        return [
            Score(float(r.completion == r.metadata["gold"]), {"right": float(r.completion != "")})
            if r.completion
            else Score(None, error=Failure("verifier_error", "empty"))
            for r in rollouts
        ]

    def measure(self, rollouts, scores):
        sums = np.array([[s.value or 0.0, s.value is not None] for s in scores], dtype=float)
        rate = Metric(lambda total: total[..., 0] / total[..., 1], "higher")
        return Measurement(tuple(r.prompt_id for r in rollouts), sums, {"accuracy": rate})


@pytest.fixture
def monitor():
    return FailureMonitor(max_rate=0.1, window=1)


def test_trl_gets_values_in_order_and_none_for_what_failed(monitor) -> None:
    rows = []
    kept = []
    score = reward_function(
        Toy(), RECORDS, ["<A>", "<B>"], monitor, rows.append, lambda *step: kept.append(step)
    )
    completions = ["1", [{"role": "assistant", "content": "2"}], "", "1"]
    values = score(prompts=[], completions=completions, index=[0, 1, 1, 1], completion_ids=[])
    assert values == [1.0, 1.0, None, 0.0]
    assert monitor.exceeded
    assert rows[0]["failures"] == 1
    assert rows[0]["reward"] == pytest.approx(2 / 3)
    assert rows[0]["env/accuracy"] == pytest.approx(2 / 3)
    ((rollouts, scores),) = kept
    assert [rollout.prompt for rollout in rollouts] == ["<A>", "<B>", "<B>", "<B>"]
    assert [score.value for score in scores] == values


def test_a_step_in_which_nothing_could_be_scored_has_no_reward(monitor) -> None:
    rows = []
    score = reward_function(Toy(), RECORDS, ["<A>", "<B>"], monitor, rows.append, lambda *_: None)
    assert score(completions=["", ""], index=[0, 1]) == [None, None]
    assert "reward" not in rows[0]
    assert rows[0]["failures"] == 2


def test_components_are_means_over_the_rollouts_that_have_them() -> None:
    scores = [Score(1.0, {"x": 1.0, "y": 3.0}), Score(0.0, {"x": 0.0})]
    row = step_row(Toy(), [], scores)
    assert (row["reward/x"], row["reward/y"]) == (0.5, 3.0)
