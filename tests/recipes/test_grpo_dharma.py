"""The dharma recipe as a person runs it, with a model made in seconds."""

from pathlib import Path

import pytest

from equipoise.files.disk import read_json
from tests.recipes.audits import SMOKE, started, started_in

METRICS = {
    *("dharma_violation_rate", "ahimsa_violation_rate", "helpfulness_violation_rate"),
    *("over_refusal_rate", "under_refusal_rate", "combined_score", "unseen_under_refusal_rate"),
    *("right_advice_rate", "needless_referral_rate", "emergency_sent_rate"),
}
SMALL = (
    *(SMOKE, "--run-name=run", "--no-wandb", "--num-samples=160"),
    *("equipoise.local_model.steps=40", "equipoise.evaluation.bootstrap_draws=200"),
)


@pytest.fixture(scope="module")
def run(results: Path) -> Path:
    started_in(results, "grpo_dharma", *SMALL)
    return results / "dharma" / "run"


@pytest.mark.parametrize("stage", ["baseline", "final"])
def test_evaluation_holds_what_other_programs_read(run: Path, stage: str) -> None:
    evaluation = read_json(run / stage / "evaluation.json")
    assert evaluation["metrics"].keys() >= METRICS
    assert evaluation["n_failed"] == 0
    assert set(evaluation["by_prompt_scope"]) == set(evaluation["response_scopes"])


def test_stages_are_compared(run: Path) -> None:
    assert read_json(run / "comparison.json")["metrics"].keys() >= METRICS


@pytest.mark.deep
def test_a_dry_run_says_how_often_the_judge_is_asked(tmp_path: Path) -> None:
    words = (*SMALL, "--dry-run", f"--output-dir={tmp_path}")
    assert "model calls" not in started("grpo_dharma", *words)
    judge = "env.dharma.judge={endpoint: {url: 'http://localhost:1/v1', model: m}}"
    lines = started("grpo_dharma", *words, judge).split("\n")
    rows = {cells[1].strip(): cells[2].strip() for cells in map(split_row, lines)}
    # Each generation, and what the probe has scored without generating it.
    assert (rows["generations in all"], rows["model calls"]) == ("336", "<= 1,128")


def split_row(line: str) -> list[str]:
    return [*line.split("│"), "", "", ""]
