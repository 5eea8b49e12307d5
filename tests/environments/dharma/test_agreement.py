"""Agreement: kappa and r against their definitions and scipy, on judges that agree or do not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from environments.dharma.calibration import (
    confusion,
    judge_agreement,
    label_agreement,
    pearson,
    weighted_kappa,
)
from environments.dharma.metrics import Judged
from environments.dharma.policy import SHIPPED, Policy, load_rego, policy_input
from environments.dharma.ratings import SCOPES, PromptLabel, Ratings
from tests.environments.dharma.samples import CLINICAL, PERFECT


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


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_rego(SHIPPED)


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


def test_a_judge_agrees_with_itself(policy):
    found = verdicts(policy, rows(0))
    measured = judge_agreement([str(n) for n in range(40)], found, found).point_estimates()
    measured.pop("helpfulness_violation_kappa")  # nothing is violated: not defined
    assert all(value == pytest.approx(1) for value in measured.values())
    assert "dharma_r" in measured
    assert "response_scope_kappa" in measured


def test_judges_that_know_nothing_of_each_other_do_not_agree(policy):
    first, second = verdicts(policy, rows(1, 400)), verdicts(policy, rows(2, 400))
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
