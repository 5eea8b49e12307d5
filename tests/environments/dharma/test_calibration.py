"""A judge beside given labels and beside another judge; what decides is the run's own policy."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from environments.base import Failure, PromptRecord, Rollout, Score
from environments.dharma.calibration import (
    CalibrationError,
    agreement_with_labels,
    agreement_with_ratings,
    agreement_with_verdicts,
)
from environments.dharma.environment import DharmaEnvironment, DharmaSettings
from environments.dharma.judge import Exchange
from environments.dharma.policy import Policy, PolicySettings, load_policy
from environments.dharma.ratings import SCOPES, PromptLabel, Ratings
from tests.environments.dharma.samples import CLINICAL, PERFECT, SHARES, rollout, strict_policy

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
    with pytest.raises(CalibrationError, match="no reply is rated"):
        agreement_with_ratings(DrawnJudge(), policy, rollouts, [FAILED] * len(scores), 9)
    failing = [rollout(r.prompt_id, "fails") for r in rollouts]
    with pytest.raises(CalibrationError, match="rated no reply: too slow"):
        agreement_with_ratings(DrawnJudge(), policy, failing, scores, 9)
    with pytest.raises(CalibrationError, match="no prompt has a tier"):
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
    with pytest.raises(CalibrationError, match="too many"):
        agreement_with_verdicts(replies[:1], [FAILED])
