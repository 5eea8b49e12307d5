"""A folder that the real NeMo 2.4.1 wrote by its importer on a CPU, and what others may make."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

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


def settings_of(folder):
    """Settings that change the output of a model and that its shapes do not show."""
    config = AutoConfig.from_pretrained(folder)
    names = ("model_type", "vocab_size", "hidden_act", "num_attention_heads", "rms_norm_eps")
    names += ("num_key_value_heads", "max_position_embeddings", "rope_parameters")
    return {name: getattr(config, name) for name in (*names, "tie_word_embeddings")}


@pytest.mark.parametrize("level", ["", "weights"])
def test_it_becomes_the_model_that_it_was(level, tmp_path):
    out = tmp_path / "out"
    weights = made(FIXTURE / "model" / level, out)
    assert same(weights, load_file(FIXTURE / "expected.safetensors"))
    assert settings_of(out) == settings_of(FIXTURE)
    recorded = load_file(FIXTURE / "logits.safetensors")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(out)(recorded["ids"]).logits
    assert torch.allclose(logits, recorded["nemo"], atol=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer("a dose")["input_ids"]).replace(" ", "") == "adose"
    assert AutoConfig.from_pretrained(out).eos_token_id == tokenizer.eos_token_id
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_rows_that_fill_up_the_vocabulary_are_left_out(folder, tmp_path):
    change_config(folder, vocab_size=None)  # the tokenizer says how many are words
    weights = made(folder, tmp_path / "out")
    words = len(AutoTokenizer.from_pretrained(tmp_path / "out"))
    assert words < 64
    assert len(weights["model.embed_tokens.weight"]) == words


def test_its_base_may_be_named(base, tmp_path):
    weights = made(FIXTURE / "model", tmp_path / "out", base)
    assert same(weights, load_file(FIXTURE / "expected.safetensors"))


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
        ("add_qkv_bias", True, "verify.missing-tensors | model.layers.0.self_attn.q_proj.bias"),
        ("num_layers", "many", "stated.invalid-count | num_layers | 'many'"),
        ("num_layers", 3, "megatron.missing-tensor"),
        ("rotary_base", float("nan"), "stated.number-below-zero | rotary_base | nan"),
        ("num_attention_heads", 8, "megatron.other-heads | 32"),
    ],
)
def test_a_setting_that_is_not_a_llama_s(key, value, told, folder, tmp_path):
    change_config(folder, **{key: value})
    assert holds(refused(folder, tmp_path / "out"), told)


def test_it_needs_its_defaults(folder, tmp_path):
    (folder / "context" / "model.yaml").unlink()
    assert holds(refused(folder, tmp_path / "out"), "nemo.unstated-default | model.yaml")


def test_it_needs_its_tokenizer(folder, tmp_path):
    shutil.rmtree(folder / "context" / "nemo_tokenizer")
    assert holds(refused(folder, tmp_path / "out"), "nemo.unloadable-tokenizer | context")


def test_a_format_of_before_torch_dist(folder, tmp_path):
    (folder / "weights" / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    assert holds(refused(folder, tmp_path / "out"), "torch-dist.unknown-backend | zarr")


def test_a_configuration_that_runs_something(folder, tmp_path):
    with (folder / "context" / "model.yaml").open("a") as file:
        file.write(f"more: !!python/object/apply:os.mkdir [{tmp_path / 'ran'}]\n")
    assert holds(refused(folder, tmp_path / "out"), "checkpoint.damaged-yaml | model.yaml")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["model.nemo", "unpacked/model_config.yaml"])
def test_nemo_1_is_told_what_to_use(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    source = path if name.endswith(".nemo") else path.parent
    assert holds(refused(source, tmp_path / "out"), "convert.nemo-1")
