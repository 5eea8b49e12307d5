"""NeMo-RL's step returns rewards in order, handles failures, and keeps records for the driver."""

import pytest

from environments.base import IncompleteSetError, PromptRecord, Rollout
from environments.fairness import FairnessEnvironment, FairnessSettings
from equipoise.train.nemo_rl.scoring import StepScorer, metadata_of, to_rollouts
from tests.equipoise.run.toy import EMPTY, Toy

RECORD = PromptRecord("p", "toy", ({"role": "user", "content": "Q"},), "s", "train", {"gold": "1"})


def log(*replies):
    messages = [{"role": "user", "content": "<Q>"}]
    return [*messages, *({"role": "assistant", "content": reply} for reply in replies)]


def rollouts(*replies, **changes):
    return to_rollouts([log(r) for r in replies], [metadata_of(RECORD) | changes] * len(replies))


def test_a_message_log_becomes_the_rollout_of_its_record():
    (rollout,) = rollouts("1")
    assert rollout == Rollout("p", "s", "train", "<Q>", "1", {"gold": "1"})


def test_a_conversation_without_a_reply_has_an_empty_completion():
    (rollout,) = to_rollouts([log()], [metadata_of(RECORD)])
    assert rollout.completion == ""


def test_rewards_come_in_order_a_failure_as_its_siblings_mean_and_the_summary_once():
    scorer = StepScorer(Toy())
    scorer.count([{"split": "train", "tokens": 7}] * 3)
    assert scorer.rewards(rollouts("1", "2", "")) == [1.0, 0.0, 0.5]
    summary = scorer.summary("train")
    assert summary.errors == (None, None, EMPTY)
    assert summary.prompt_tokens == 21
    assert summary.row["reward"] == summary.row["env/accuracy"] == 0.5
    assert summary.row["failures"] == summary.row["failures/verifier_error"] == 1
    assert scorer.summary("train") is None


def test_a_sample_of_training_comes_with_the_summary():
    scorer = StepScorer(Toy(), lambda rollouts, scores: [(rollouts[1], scores[1])])
    scorer.rewards(rollouts("1", "2"))
    ((rollout, score),) = scorer.summary("train").sample
    assert (rollout.completion, score.value) == ("2", 0.0)
    scorer.rewards(rollouts("1", "2", split="validation"))
    assert scorer.summary("validation").sample == ()


def test_several_calls_sum_up_to_the_same_step():
    together, apart = StepScorer(Toy()), StepScorer(Toy())
    together.rewards(rollouts("1", "2", "1"))
    for reply in ("1", "2", "1"):
        apart.rewards(rollouts(reply))
    assert apart.summary("train") == together.summary("train")


def test_validation_is_kept_apart_from_training():
    scorer = StepScorer(Toy())
    scorer.rewards(rollouts("1"))
    scorer.rewards(rollouts("2", split="validation"))
    assert scorer.summary("validation").row["reward"] == 0
    assert scorer.summary("train").row["reward"] == 1


def test_a_part_of_a_set_raises():
    environment = FairnessEnvironment(FairnessSettings())
    metadata = {"race": "White", "case": "c", "severity": "mild"}
    with pytest.raises(IncompleteSetError):
        StepScorer(environment).rewards(rollouts("{}", metadata=metadata))
