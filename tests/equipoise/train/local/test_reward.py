import pytest

from environments.base import PromptRecord, Score
from equipoise.run.history import step_row
from equipoise.run.job import FailureMonitor
from equipoise.train.local import reward_function
from tests.equipoise.train.toy import Toy

RECORDS = [
    PromptRecord("a", "toy", ({"role": "user", "content": "A"},), "s", "train", {"gold": "1"}),
    PromptRecord("b", "toy", ({"role": "user", "content": "B"},), "s", "train", {"gold": "2"}),
]


@pytest.fixture
def monitor():
    return FailureMonitor(max_rate=0.1, window=1)


def test_trl_gets_values_in_order_and_none_for_what_failed(monitor) -> None:
    rows = []
    kept = []
    score = reward_function(Toy(), RECORDS, monitor, rows.append, lambda *step: kept.append(step))
    prompts, logged = ["<A>", "<B>", "<B>", "<B>"], {}
    values = score(
        prompts=prompts,
        completions=["1", "2", "", "1"],
        index=[0, 1, 1, 1],
        log_metric=logged.__setitem__,
    )
    assert logged == {"env/accuracy": pytest.approx(2 / 3)}
    assert values == [1.0, 1.0, None, 0.0]
    assert monitor.exceeded
    assert rows[0]["failures"] == 1
    assert rows[0]["reward"] == pytest.approx(2 / 3)
    assert rows[0]["env/accuracy"] == pytest.approx(2 / 3)
    ((rollouts, scores),) = kept
    assert [rollout.prompt for rollout in rollouts] == prompts
    assert [score.value for score in scores] == values


def test_a_step_in_which_nothing_could_be_scored_has_no_reward(monitor) -> None:
    rows = []
    score = reward_function(Toy(), RECORDS, monitor, rows.append, lambda *_: None)
    assert score(prompts=["<A>", "<B>"], completions=["", ""], index=[0, 1]) == [None, None]
    assert "reward" not in rows[0]
    assert rows[0]["failures"] == 2


def test_components_are_means_over_the_rollouts_that_have_them() -> None:
    scores = [Score(1.0, {"x": 1.0, "y": 3.0}), Score(0.0, {"x": 0.0})]
    row = step_row(Toy(), [], scores)
    assert (row["reward/x"], row["reward/y"]) == (0.5, 3.0)
