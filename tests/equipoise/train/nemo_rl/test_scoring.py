"""What NeMo-RL's step computes: order, failures, what is kept for the driver."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import IncompleteSetError, PromptRecord, Rollout, Score
from environments.fairness import FairnessEnvironment, FairnessSettings
from equipoise.train.nemo_rl.scoring import (
    NOT_GENERATED,
    MissingSiblingsError,
    StepScorer,
    is_generated,
    metadata_of,
    score_generated,
    to_rollouts,
    without_failures,
)
from tests.equipoise.train.toy import EMPTY, Toy

RECORD = PromptRecord("p", "toy", ({"role": "user", "content": "Q"},), "s", "train", {"gold": "1"})


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
    ((rollout, score),) = scorer.summary("train").sample
    assert (rollout.completion, score.value) == ("2", 0.0)
    scorer.rewards([log("1"), log("2")], [metadata_of(RECORD) | {"split": "validation"}] * 2)
    assert scorer.summary("validation").sample == ()


def test_one_call_per_rollout_sums_up_to_the_same_step():
    together, alone = StepScorer(Toy()), StepScorer(Toy())
    logs = [log("1"), log("2"), log("1")]
    together.rewards(logs, [metadata_of(RECORD)] * 3)
    for one in logs:
        alone.rewards([one], [metadata_of(RECORD)])
    assert alone.summary("train") == together.summary("train")


NEVER = [{"role": "user", "content": "<Q>"}]
ASKED = [metadata_of(PromptRecord(f"{s}{p}", "toy", (), s, "train")) for s in "ab" for p in "xy"]


class Whole(Toy):
    """Needs every prompt of a set, or all generations of a prompt, as its scope says."""

    def __init__(self, scope):
        self.scope = scope

    def score(self, rollouts):
        seen = Counter(r.prompt_id for r in rollouts)
        sets = Counter(name[0] for name in seen)
        assert set(seen.values()) == {2}
        assert self.scope != "set" or set(sets.values()) == {2}
        return [Score(float(r.completion)) for r in rollouts]


@pytest.mark.parametrize(
    ("scope", "lost", "rewards"),
    [
        ("rollout", 1, [5.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("prompt", 2, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("set", 4, [0.0, 0.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0]),
    ],
)
def test_a_reply_that_was_not_generated_costs_its_own_group_alone(scope, lost, rewards):
    """And no reward is made up: siblings' mean, or all alike where none is left."""
    environment = Toy() if scope == "rollout" else Whole(scope)
    if scope == "rollout":
        environment.score = lambda rollouts: [Score(float(r.completion)) for r in rollouts]
    scorer = StepScorer(environment)
    logs = [NEVER, log("5"), *(log(str(number)) for number in range(1, 7))]
    metadata = [info for info in ASKED for _ in range(2)]
    assert scorer.rewards(logs, metadata) == rewards
    assert [is_generated(messages) for messages in logs] == [False] + [True] * 7
    scores = score_generated(environment, to_rollouts(logs, metadata), [False] + [True] * 7)
    assert [score.error for score in scores] == [NOT_GENERATED] * lost + [None] * (8 - lost)


def test_where_nothing_was_generated_nothing_is_scored():
    (score,) = score_generated(Whole("set"), to_rollouts([NEVER], ASKED[:1]), [False])
    assert score.error == NOT_GENERATED


def test_validation_is_kept_apart_from_training():
    scorer = StepScorer(Toy())
    scorer.rewards([log("1")], [metadata_of(RECORD)])
    scorer.rewards([log("2")], [metadata_of(RECORD) | {"split": "validation"}])
    assert scorer.summary("validation").row["reward"] == 0
    assert scorer.summary("train").row["reward"] == 1


def test_a_part_of_a_set_raises():
    environment = FairnessEnvironment(FairnessSettings())
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
