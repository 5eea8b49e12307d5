"""The PubMedQA recipe as a person runs it, with a model made in seconds."""

from pathlib import Path

import pytest

from data_prep.pubmedqa.prompts import prompt_record
from data_prep.pubmedqa.sources import Item, Section
from data_prep.records import read_prompts, write_prompts
from environments.pubmedqa import LABELS
from equipoise.files.disk import read_json
from tests.recipes.audits import SMOKE, started, started_in

SMALL = (
    *(SMOKE, "--run-name=run", "--no-wandb", "--num-samples=120"),
    *("equipoise.local_model.steps=40", "equipoise.evaluation.generations=1"),
    "equipoise.evaluation.bootstrap_draws=200",
)


@pytest.fixture(scope="module")
def output(results: Path) -> str:
    return started_in(results, "grpo_pubmedqa", *SMALL)


@pytest.fixture(scope="module")
def run(results: Path, output: str) -> Path:
    return results / "pubmedqa" / "run"


def test_evaluation_holds_what_other_programs_read(run: Path) -> None:
    found = read_json(run / "final" / "evaluation.json")
    assert (found["task"], found["split"]) == ("pubmedqa", "test")
    assert found["n_rollouts"] == found["n_prompts"] == 24
    for name in ("accuracy", "macro_f1", "parse_rate", "majority_baseline", "format_rate"):
        assert found["metrics"][name].keys() >= {"value", "low", "high"}
    assert set(found["by_class"]) == set(LABELS)
    assert all(
        figures["recall"].keys() >= {"low", "high"} for figures in found["by_class"].values()
    )
    assert set(found["confusion"]) == {f"gold {label}" for label in LABELS}


def test_predictions_agree_with_the_evaluation(run: Path) -> None:
    gold = {r.id: r.metadata["gold"] for r in read_prompts(run / "prompts.jsonl")}
    for stage in ("baseline", "final"):
        predicted = read_json(run / stage / "predictions.json")
        evaluation = read_json(run / stage / "evaluation.json")
        assert set(predicted.values()) <= set(LABELS)
        assert len(predicted) == evaluation["n_prompts"]
        accuracy = sum(gold[name] == label for name, label in predicted.items()) / len(predicted)
        assert accuracy == pytest.approx(evaluation["metrics"]["accuracy"]["value"])


def test_before_and_after_are_compared_with_mcnemar(run: Path) -> None:
    found = read_json(run / "comparison.json")["metrics"]
    assert found["accuracy"]["test"] == "mid-p McNemar"
    assert found["macro_f1"]["test"] == "paired bootstrap"


def test_it_is_said_what_the_local_model_is(run: Path, output: str) -> None:
    notice = "say nothing of PubMedQA, of any clinical model or of any drug"
    assert notice in " ".join(output.split())
    assert notice in (run / "report.html").read_text()


def test_a_prompt_file_without_gold_is_refused(tmp_path: Path) -> None:
    item = Item("a", "Is it so?", (Section("", "a"),), "perhaps")
    write_prompts(tmp_path / "prompts.jsonl", [prompt_record(item, "train", 3, 960)], {})
    path = f"equipoise.data.data_path={tmp_path / 'prompts.jsonl'}"
    words = ("--config=nemo_configs/small.yaml", "--dry-run", path, f"--output-dir={tmp_path}")
    assert "1 prompts have no gold" in started("grpo_pubmedqa", *words, code=1)
