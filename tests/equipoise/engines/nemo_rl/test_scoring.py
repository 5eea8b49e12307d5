"""What NeMo-RL's step computes: order, failures, what is kept for the driver."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Failure, IncompleteSetError, PromptRecord, Rollout, Score
from environments.disparity import DisparityEnvironment, DisparitySettings
from environments.measurement import Measurement, Metric
from equipoise.engines.nemo_rl.scoring import (
    MissingSiblingsError,
    StepScorer,
    metadata_of,
    to_rollouts,
    without_failures,
)

RECORD = PromptRecord("p", "toy", ({"role": "user", "content": "Q"},), "s", "train", {"gold": "1"})


EMPTY = Failure("verifier_error", "empty")


class Toy:
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


def log(*replies):
    messages = [{"role": "user", "content": "<Q>"}]
    return [*messages, *({"role": "assistant", "content": reply} for reply in replies)]


def test_a_message_log_becomes_the_rollout_of_its_record():
    (rollout,) = to_rollouts([log("1")], [metadata_of(RECORD)])
    assert rollout == Rollout("p", "s", "train", "<Q>", "1", {"gold": "1"})


def test_a_conversation_without_a_reply_has_an_empty_completion():
    (rollout,) = to_rollouts([log()], [metadata_of(RECORD)])
    assert rollout.completion == ""


def test_rewards_come_in_order_and_the_summary_once():
    scorer = StepScorer(Toy())
    logs = [log("1"), log("2"), log("")]
    assert scorer.rewards(logs, [metadata_of(RECORD)] * 3) == [1.0, 0.0, 0.5]
    summary = scorer.summary("train")
    assert summary.errors == (None, None, EMPTY)
    assert summary.row["reward"] == summary.row["env/accuracy"] == 0.5
    assert summary.row["failures"] == summary.row["failures/verifier_error"] == 1
    assert scorer.summary("train") is None


def test_a_sample_of_training_comes_with_the_summary():
    scorer = StepScorer(Toy(), lambda rollouts, scores: [(rollouts[1], scores[1])])
    scorer.rewards([log("1"), log("2")], [metadata_of(RECORD)] * 2)
    ((rollout, score),) = scorer.summary("train").kept
    assert (rollout.completion, score.value) == ("2", 0.0)
    scorer.rewards([log("1"), log("2")], [metadata_of(RECORD) | {"split": "validation"}] * 2)
    assert scorer.summary("validation").kept == ()


def test_one_call_per_rollout_sums_up_to_the_same_step():
    together, alone = StepScorer(Toy()), StepScorer(Toy())
    logs = [log("1"), log("2"), log("1")]
    together.rewards(logs, [metadata_of(RECORD)] * 3)
    for one in logs:
        alone.rewards([one], [metadata_of(RECORD)])
    assert alone.summary("train") == together.summary("train")


def test_validation_is_kept_apart_from_training():
    scorer = StepScorer(Toy())
    scorer.rewards([log("1")], [metadata_of(RECORD)])
    scorer.rewards([log("2")], [metadata_of(RECORD) | {"split": "validation"}])
    assert scorer.summary("validation").row["reward"] == 0
    assert scorer.summary("train").row["reward"] == 1


def test_a_part_of_a_set_raises():
    environment = DisparityEnvironment(DisparitySettings())
    info = metadata_of(RECORD) | {"metadata": {"race": "White", "case": "c", "severity": "mild"}}
    with pytest.raises(IncompleteSetError):
        StepScorer(environment).rewards([log("{}")], [info])


VALUES = st.none() | st.floats(-10, 10)


def test_a_failure_that_comes_alone_never_becomes_a_number():
    scorer, info = StepScorer(Toy()), metadata_of(RECORD)
    assert scorer.rewards([log("1")], [info]) == [1.0]
    with pytest.raises(MissingSiblingsError, match="came without siblings, the first of p"):
        scorer.rewards([log("")], [info])


@given(st.lists(st.lists(VALUES, min_size=2, max_size=8), min_size=1, max_size=5))
def test_a_failure_takes_its_siblings_mean_and_nothing_else_changes(groups):
    pairs = [
        (
            Rollout(str(prompt), "s", "train", "", ""),
            Score(value, error=EMPTY if value is None else None),
        )
        for prompt, group in enumerate(groups)
        for value in group
    ]
    rewards = iter(without_failures(*zip(*pairs, strict=True)))
    for group in groups:
        valid = [value for value in group if value is not None]
        mean = sum(valid) / len(valid) if valid else 0.0
        for value in group:
            assert next(rewards) == pytest.approx(mean if value is None else value)
