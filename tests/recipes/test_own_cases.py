"""Own cases as a person trains, probes and audits them: what works, and what is refused at once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data_prep.imitation import imitating_model
from data_prep.warm_start import WarmStart
from environments.disparity.own_cases import read_own_cases
from environments.disparity.trivial import decision_by_severity
from tests.recipes.audits import ROOT, SMOKE, started
from tests.recipes.runs import steps_done

EXAMPLE = ROOT / "nemo_configs" / "cases" / "chest_pain_gender.yaml"
LOCAL = "--config=nemo_configs/local.yaml"


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a case to train on and one to choose a checkpoint by."""
    path = tmp_path_factory.mktemp("cases") / "mine.yaml"
    tree = yaml.safe_load(EXAMPLE.read_text()) | {"train": ["muscle"], "validate": ["rest"]}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def model(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has seen decisions on these cases, more invasive ones for men."""
    cases = read_own_cases(mine)
    records, design = cases.records("fairness"), cases.design()
    settings, rng = (
        WarmStart(steps=60, batch_size=16, max_positions=1024),
        np.random.default_rng(0),
    )
    shown = []
    for number in rng.integers(len(records), size=settings.steps * settings.batch_size):
        told: dict[str, Any] = dict(records[number].metadata)
        if told["gender"] == "man" and rng.random() < 0.5:
            told["severity"] = "severe"
        shown.append((records[number], str(decision_by_severity(told, design))))
    return imitating_model(shown, settings, tmp_path_factory.mktemp("model"))


def words(folder: Path, cases: Path, *more: str) -> tuple[str, ...]:
    own = (f"--output-dir={folder}", f"equipoise.cache_dir={folder / 'cache'}")
    return (*own, f"env.fairness.cases_file={cases}", *more)


def test_a_model_is_probed_and_trained_on_them(mine: Path, model: Path, tmp_path: Path) -> None:
    small = (f"--model-name={model}", "--no-wandb", "--run-name=a", "--batch-size=8")
    keys = ("policy.generation.max_new_tokens=64", "equipoise.max_failure_rate=1")
    started("grpo_fairness", SMOKE, *words(tmp_path, mine, *small, *keys))
    run = tmp_path / "fairness" / "a"
    assert steps_done(run) == 2
    final = json.loads((run / "final" / "evaluation.json").read_text())
    assert set(final["by_gender"]) == {"man", "woman"}
    probe = json.loads((run / "probe" / "probe.json").read_text())
    assert {"random gender", "blinded", "constant"} <= probe["policies"].keys()
    splits = {
        prompt["metadata"]["case"]: prompt["split"]
        for prompt in map(json.loads, (run / "prompts.jsonl").read_text().splitlines())
    }
    assert splits == {"muscle": "train", "rest": "validation", "exertion": "test"}
    assert "gender" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("grpo_fairness", (LOCAL,)),
        ("grpo_fairness", (LOCAL, "--dry-run")),
        ("evaluate", ("--task=fairness", "--model=local")),
    ],
)
def test_the_local_model_is_refused_before_anything_is_made(
    recipe: str, more: tuple[str, ...], mine: Path, tmp_path: Path
) -> None:
    said = started(recipe, *words(tmp_path, mine, *more), code=2)
    assert "has 1 problem" in said
    assert "policy.model_name: the local model knows the cases that come with it" in said
    assert "smollm2" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["", "dry run"])
def test_a_file_that_names_nothing_to_train_on_is_refused_with_the_remedy(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    named = (LOCAL, "--model-name=some/model", "--no-wandb")
    said = started("grpo_fairness", *words(tmp_path, EXAMPLE, *named, *more), code=2)
    assert "names no case under `train`" in said and "recipes/evaluate.py" in said
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_step_larger_than_the_cases_names_one_that_is_not(mine: Path, tmp_path: Path) -> None:
    named = (LOCAL, "--model-name=some/model", "--no-wandb", "--dry-run")
    said = started("grpo_fairness", *words(tmp_path, mine, *named), code=2)
    assert "there are 8 prompts to train on" in said and "--batch-size 8" in said
