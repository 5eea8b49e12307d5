"""A folder that the real NeMo 2.4.1 wrote by its importer on a CPU, and what others may make."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.equipoise.checkpoints.samples import change_json, made, refused, same
from tests.refusals import holds

FIXTURE = Path(__file__).parent / "fixtures" / "nemo" / "nemo_2"


@pytest.fixture
def folder(tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(FIXTURE / "model", tmp_path / "nemo_2")


@pytest.fixture
def base(tmp_path):
    """The model that its weights are from, without weights."""
    shutil.copytree(FIXTURE / "model" / "context" / "nemo_tokenizer", tmp_path / "base")
    shutil.copy(FIXTURE / "config.json", tmp_path / "base")
    return tmp_path / "base"


def change_config(folder, **changes):
    path = folder / "context" / "model.yaml"
    document = yaml.safe_load(path.read_text())
    document["config"] |= changes
    path.write_text(yaml.safe_dump(document))


@pytest.mark.parametrize("level", ["", "weights"])
def test_it_becomes_the_model_that_it_was(level, base, tmp_path):
    out = tmp_path / "out"
    assert same(
        made(FIXTURE / "model" / level, out, base), load_file(FIXTURE / "expected.safetensors")
    )
    recorded = load_file(FIXTURE / "logits.safetensors")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(out)(recorded["ids"]).logits
    assert torch.allclose(logits, recorded["nemo"], atol=1e-4)


def test_its_base_is_to_be_named(tmp_path):
    assert holds(refused(FIXTURE / "model", tmp_path / "out"), "convert.unstated-model")


def test_another_base_is_refused_by_name(base, tmp_path):
    change_json(base / "config.json", rms_norm_eps=0.25)
    message = refused(FIXTURE / "model", tmp_path / "out", base)
    assert holds(message, "stated.other-model | model.yaml | rms_norm_eps")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_moe_experts", 8, "stated.unknown-form | num_moe_experts | 8"),
        ("normalization", "LayerNorm", "stated.unknown-form | normalization | 'layernorm'"),
        ("rotary_percent", 0.5, "stated.unknown-form | rotary_percent | 0.5"),
        ("seq_len_interpolation_factor", 2.0, "stated.two-rope-scalings"),
        ("num_layers", "many", "stated.other-model | num_hidden_layers is 'many'"),
        ("rotary_base", float("nan"), "stated.other-model | rope_theta is nan"),
    ],
)
def test_a_setting_that_is_not_a_llama_s(key, value, told, folder, base, tmp_path):
    change_config(folder, **{key: value})
    assert holds(refused(folder, tmp_path / "out", base), told)


def test_a_format_of_before_torch_dist(folder, tmp_path):
    (folder / "weights" / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    assert holds(refused(folder, tmp_path / "out"), "torch-dist.unknown-backend | zarr")


def test_a_configuration_that_runs_something(folder, tmp_path):
    with (folder / "context" / "model.yaml").open("a") as file:
        file.write(f"more: !!python/object/apply:os.mkdir [{tmp_path / 'ran'}]\n")
    assert holds(refused(folder, tmp_path / "out"), "checkpoint.damaged-yaml | model.yaml")
    assert not (tmp_path / "ran").exists()
