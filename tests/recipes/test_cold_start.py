"""A cold start by its recipe, and the training that goes on from it."""

import json
from pathlib import Path

import pytest

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from tests.recipes.audits import started
from tests.recipes.runs import steps_done

pytestmark = pytest.mark.deep

CONFIG = "--config=nemo_configs/smoke.yaml"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    asked = ({"role": "user", "content": "What helps against a cough?"},)
    shown = [Example(asked, "Drink water and rest.")] * 16
    size = WarmStart(vocab_size=400, hidden_size=32, steps=1, batch_size=16, max_positions=2048)
    return str(warm_start(shown, size, tmp_path_factory.mktemp("cache")))


def test_a_run_goes_on_from_it(base: str, tmp_path: Path) -> None:
    own = (CONFIG, f"equipoise.cache_dir={tmp_path}/cache", "policy.max_total_sequence_length=2048")
    few = "equipoise.cold_start.examples=20"
    said = started("cold-start", "dharma", f"{tmp_path}/s", *own, few, f"--model-name={base}")
    assert "cold start: 20 replies" in said
    assert json.loads((tmp_path / "s" / "cold_start.json").read_text())["task"] == "dharma"
    run = (f"--output-dir={tmp_path}", "--run-name=r", "--no-wandb", f"--model-name={tmp_path}/s")
    started("grpo_dharma", *own, *run)
    assert steps_done(tmp_path / "dharma" / "r") == 2
    again = ("cold-start", "dharma", f"{tmp_path}/s", *own, f"--model-name={base}")
    assert "cold-start.existing-folder" in started(*again, code=2)


def test_the_local_model_needs_none(tmp_path: Path) -> None:
    said = started("cold-start", "dharma", f"{tmp_path}/s", CONFIG, code=2)
    assert "cold-start.local-model" in said
    assert not (tmp_path / "s").exists()


def test_its_words_are_those_of_training(tmp_path: Path) -> None:
    said = started(
        "cold-start", "dharma", f"{tmp_path}/s", "equipoise.cold_start.example=3", code=2
    )
    assert "equipoise.cold_start.examples" in said
