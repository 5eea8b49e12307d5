"""Tiny models, and the folder of a checkpoint."""

import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from equipoise.files.console import Reporter, printing_notes
from tests.equipoise.checkpoints.samples import SIZES, random_weights


@pytest.fixture(autouse=True)
def notes():
    with printing_notes(Reporter()):
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model whose output layer is its own."""
    folder = tmp_path_factory.mktemp("llama")
    shape = LlamaConfig(**SIZES, tie_word_embeddings=False)
    random_weights(LlamaForCausalLM(shape)).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tied(tmp_path_factory):
    """A model whose output layer is its embeddings."""
    folder = tmp_path_factory.mktemp("qwen2")
    shape = Qwen2Config(**SIZES, tie_word_embeddings=True)
    random_weights(Qwen2ForCausalLM(shape)).save_pretrained(folder)
    return folder


@pytest.fixture
def source(model, tmp_path):
    """A copy of the model, which a test may change."""
    return shutil.copytree(model, tmp_path / "source")


@pytest.fixture
def step(model, tmp_path):
    """An empty `step_4` of NeMo-RL, and the folder of its weights."""
    folder = tmp_path / "step_4"
    weights = folder / "policy" / "weights" / "model"
    weights.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"policy:\n  model_name: {model}\n")
    (folder / "policy" / "tokenizer").mkdir()
    (folder / "policy" / "tokenizer" / "tokenizer.json").write_text("{}")
    return folder, weights
