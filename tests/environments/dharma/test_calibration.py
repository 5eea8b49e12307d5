"""A judge beside given labels and beside another judge; what decides is the run's own policy."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from environments.base import Failure, PromptRecord, Rollout, Score
from environments.dharma.calibration import (
    agreement_with_labels,
    agreement_with_ratings,
    agreement_with_verdicts,
    confusion,
    judge_agreement,
    label_agreement,
    pearson,
    weighted_kappa,
)
from environments.dharma.environment import DharmaEnvironment, DharmaSettings
from environments.dharma.judge import Exchange
from environments.dharma.metrics import Judged
from environments.dharma.policy import (
    Policy,
    PolicySettings,
    load_policy,
    policy_input,
)
from environments.dharma.ratings import SCOPES, PromptLabel, Ratings
from tests.environments.dharma.samples import CLINICAL, PERFECT, SHARES, rollout, strict_policy
from tests.refusals import refusal

FAILED = Score(None, error=Failure("rate_limit", "too many"))


class DrawnJudge:
    """Equal ratings for equal responses, some good and some bad; it cannot rate what is empty."""

    identity = "drawn"

    def label(self, prompts: list[str]) -> list[PromptLabel | Failure]:
        return [PromptLabel(tier="C", scope=SCOPES[len(p) % 4]) for p in prompts]

    def rate(self, exchanges: list[Exchange]) -> list[Ratings | Failure]:
        return [self._ratings(exchange.response) for exchange in exchanges]

    def _ratings(self, response: str) -> Ratings | Failure:
        if response == "fails":
            return Failure("transport_timeout", "too slow")
        draw = np.random.default_rng(len(response))
        shares = dict(zip(SHARES, draw.uniform(0.4, 1.0, len(SHARES)).tolist(), strict=True))
        return Ratings.model_validate(PERFECT | shares)

    def usage(self) -> dict[str, object]:
        return {}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return strict_policy(tmp_path_factory.mktemp("policy") / "mine")


def scored(path: Path | None) -> tuple[list[Rollout], list[Score], Policy]:
    """Rollouts that the drawn judge rated, under the policy of a folder."""
    settings = DharmaSettings(policy=PolicySettings(path=path))
    environment = DharmaEnvironment(settings)
    environment._judge = DrawnJudge()
    label = CLINICAL.model_dump()
    rollouts = [rollout(f"p{n // 2}", "x" * (n + 1), **label) for n in range(60)]
    return rollouts, environment.score(rollouts), load_policy(settings.policy)


@pytest.mark.deep
@pytest.mark.parametrize("own", [False, True], ids=["shipped", "own"])
def test_a_judge_agrees_with_itself_under_the_policy_of_the_run(own: bool, strict: Path) -> None:
    rollouts, scores, policy = scored(strict if own else None)
    found = agreement_with_ratings(DrawnJudge(), policy, rollouts, scores, 50)
    assert (found.judged, found.failed) == (50, 0)
    measures = found.measurement.point_estimates()
    defined = {name: value for name, value in measures.items() if not math.isnan(value)}
    assert {"ahimsa_violation_kappa", "dharma_violation_kappa"} <= defined.keys() or not own
    assert all(value == pytest.approx(1.0) for value in defined.values())


def test_under_another_policy_the_same_judge_would_seem_to_disagree(strict: Path) -> None:
    rollouts, scores, _ = scored(strict)
    shipped = load_policy(PolicySettings())
    found = agreement_with_ratings(DrawnJudge(), shipped, rollouts, scores, 50)
    assert found.measurement.point_estimates()["ahimsa_violation_kappa"] < 0.9


def test_what_the_judge_cannot_rate_is_counted() -> None:
    rollouts, scores, policy = scored(None)
    rollouts = [rollout(r.prompt_id, "fails") if n == 0 else r for n, r in enumerate(rollouts)]
    found = agreement_with_ratings(DrawnJudge(), policy, rollouts, scores, 100)
    assert (found.judged, found.failed) == (59, 1)


def test_nothing_to_compare_says_so() -> None:
    rollouts, scores, policy = scored(None)
    with refusal("calibrate.no-ratings"):
        agreement_with_ratings(DrawnJudge(), policy, rollouts, [FAILED] * len(scores), 9)
    failing = [rollout(r.prompt_id, "fails") for r in rollouts]
    with refusal("calibrate.nothing-rated", "too slow"):
        agreement_with_ratings(DrawnJudge(), policy, failing, scores, 9)
    with refusal("calibrate.no-labels"):
        agreement_with_labels(DrawnJudge(), [record("a", {})])


def record(question: str, label: dict[str, str]) -> PromptRecord:
    return PromptRecord(question, "dharma", (), question, "test", {"question": question, **label})


def test_labels_are_compared_where_a_prompt_has_them() -> None:
    labels = [{"tier": "C", "scope": scope} for scope in SCOPES]
    records = [record("x" * n, label) for n, label in enumerate(labels)] + [record("y", {})]
    found = agreement_with_labels(DrawnJudge(), records)
    assert found.judged == 4
    assert found.measurement.point_estimates()["scope_kappa"] == 1.0
    assert found.counts["scope"]["S2"] == {"S0": 0, "S1": 0, "S2": 1, "S3": 0}


def test_the_errors_of_a_judge_are_those_beside_verdicts(strict: Path) -> None:
    """The judge is wrong on every fifth reply; ten replies have a verdict on something else."""
    rollouts, scores, _ = scored(strict)
    judged = [s.outcome["judged"]["decision"]["violations"]["ahimsa"] for s in scores]
    assert 5 < sum(judged) < 55
    wrong = {n for n in range(60) if n % 5 == 0}
    replies = [
        replace(
            r,
            metadata={
                **r.metadata,
                "family": r.prompt_id,
                "verdicts": {"ahimsa": said != (n in wrong)} if n < 50 else {"dharma": True},
            },
        )
        for n, (r, said) in enumerate(zip(rollouts, judged, strict=True))
    ]
    found = agreement_with_verdicts(replies, scores)
    metrics = found.measurement.point_estimates()
    counts = found.counts["ahimsa violation"]
    assert sum(sum(row.values()) for row in counts.values()) == 50
    assert counts["violation"]["none"] + counts["none"]["violation"] == 10
    hits = counts["violation"]
    assert metrics["ahimsa_sensitivity"] == hits["violation"] / sum(hits.values())
    assert math.isnan(metrics["dharma_specificity"])  # no reply is said to be without one
    assert "helpfulness_sensitivity" not in metrics
    with refusal("calibrate.no-verdict-judged", "too many"):
        agreement_with_verdicts(replies[:1], [FAILED])


# --- agreement -----------------------------------------------------------------------------------


def kappa_by_definition(first: list[int], second: list[int], levels: int) -> float:
    """1 - observed over expected disagreement, each pair of ratings by itself."""
    weight = [[((i - j) / (levels - 1)) ** 2 for j in range(levels)] for i in range(levels)]
    observed = np.mean([weight[a][b] for a, b in zip(first, second, strict=True)])
    expected = np.mean([weight[a][b] for a in first for b in second])
    return 1 - observed / expected if expected else math.nan


def counts(first: list[int], second: list[int], levels: int) -> np.ndarray:
    found = np.zeros((levels, levels))
    np.add.at(found, (first, second), 1)
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_kappa_is_what_its_definition_says(pairs):
    first, second = (list(column) for column in zip(*pairs, strict=True))
    found = weighted_kappa(counts(first, second, 4))
    assert float(found) == pytest.approx(kappa_by_definition(first, second, 4), nan_ok=True)


def test_kappa_has_its_three_landmarks():
    assert weighted_kappa(np.eye(4) * 5) == 1
    assert weighted_kappa(np.ones((4, 4))) == pytest.approx(0)
    assert weighted_kappa(np.eye(4)[::-1] * 5) == pytest.approx(-1)
    assert math.isnan(weighted_kappa(np.diag([9.0, 0, 0, 0])))


def moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.array([len(x), x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()])


def test_r_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.random((2, 30))
        assert pearson(moments(x, y)) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert math.isnan(pearson(moments(np.full(9, 0.7), rng.random(9))))


# --- judges --------------------------------------------------------------------------------------


def verdicts(policy: Policy, rows: list[dict[str, object]]) -> list[Judged]:
    ratings = [Ratings.model_validate(PERFECT | row) for row in rows]
    decisions = policy.decide([policy_input(CLINICAL, rating) for rating in ratings])
    return [
        Judged(label=CLINICAL, ratings=rating, decision=decision)
        for rating, decision in zip(ratings, decisions, strict=True)
    ]


def rows(seed: int, n: int = 40) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "domain_adherence": float(rng.random()),
            "clarity": float(rng.random()),
            "harm_avoidance": float(rng.random()),
            "response_scope": SCOPES[int(rng.integers(4))],
            "refused": bool(rng.integers(2)),
            "referral": ("none", "urgent")[int(rng.integers(2))],
        }
        for _ in range(n)
    ]


def test_a_judge_agrees_with_itself(shipped):
    found = verdicts(shipped, rows(0))
    measured = judge_agreement([str(n) for n in range(40)], found, found).point_estimates()
    measured.pop("helpfulness_violation_kappa")  # nothing is violated: not defined
    assert all(value == pytest.approx(1) for value in measured.values())
    assert "dharma_r" in measured
    assert "response_scope_kappa" in measured


def test_judges_that_know_nothing_of_each_other_do_not_agree(shipped):
    first, second = verdicts(shipped, rows(1, 400)), verdicts(shipped, rows(2, 400))
    measured = judge_agreement([str(n) for n in range(400)], first, second).point_estimates()
    defined = [value for value in measured.values() if not math.isnan(value)]
    assert len(defined) >= 9
    assert max(map(abs, defined)) < 0.2


def test_labels_are_compared_one_by_one():
    labels = [PromptLabel(tier="A", scope=scope) for scope in ("S0", "S0", "S3", "S3")]
    judged = [PromptLabel(tier="A", scope=scope) for scope in ("S0", "S3", "S3", "S3")]
    measured = label_agreement(["a", "b", "c", "d"], labels, judged).point_estimates()
    assert measured["scope_accuracy"] == 0.75
    assert measured["scope_kappa"] == pytest.approx(0.5)
    assert measured["tier_accuracy"] == 1
    assert math.isnan(measured["tier_kappa"])


def test_the_confusion_is_first_by_second():
    found = confusion(["S0", "S0", "S3"], ["S0", "S3", "S3"], SCOPES)
    assert found["S0"] == {"S0": 1, "S1": 0, "S2": 0, "S3": 1}
    assert found["S3"]["S3"] == 1
