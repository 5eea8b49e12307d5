"""A checkpoint's statements about its model are compared with config.json of the base."""

import shutil
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
import yaml
from transformers import LlamaConfig, Qwen2Config

from equipoise.checkpoints.convert import convert
from equipoise.checkpoints.megatron import MegatronConfig, refuse_difference
from equipoise.files.errors import EquipoiseError
from tests.equipoise.checkpoints.large import save_megatron, shape
from tests.equipoise.checkpoints.samples import change_json, conversion, weights_of
from tests.refusals import refusal

#: As Megatron-Bridge 0.5.1 writes it of the same model; what says nothing of it is left out.
STATED = yaml.safe_load("""
{_target_: megatron.bridge.models.gpt_provider.GPTModelProvider, hidden_size: 256, num_layers: 2,
 activation_func: {_call_: false, _target_: torch.nn.functional.silu}, add_bias_linear: false,
 activation_func_clamp_value: null, add_qkv_bias: false, attention_output_gate: false,
 ffn_hidden_size: 128, gated_linear_unit: true, glu_linear_offset: 0.0, kv_channels: 64,
 layernorm_epsilon: 1.0e-6, normalization: RMSNorm, num_attention_heads: 4, num_moe_experts: null,
 num_query_groups: 1, position_embedding_type: rope, rope_scaling: false, rotary_base: 10000.0,
 rope_scaling_factor: 1.0, rotary_interleaved: false, rotary_percent: 1.0, softmax_type: vanilla,
 seq_len_interpolation_factor: null, share_embeddings_and_output_weights: false, vocab_size: 61,
 window_size: null, yarn_rotary_scaling_factor: null}
""")
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA_3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def state(iteration, **changes):
    model = {key: value for key, value in (STATED | changes).items() if value != "absent"}
    (iteration / "run_config.yaml").write_text(yaml.safe_dump({"model": model, "peft": None}))


@pytest.fixture
def folder(tmp_path):
    save_megatron(shape(2, 256, 128, 61), tmp_path)
    state(tmp_path / "iter_0000000")
    return tmp_path


def made(folder):
    convert(folder / "iter_0000000", folder / "out", base=str(folder / "base"))
    return conversion(folder / "out")["unchecked"]


def test_the_base_of_training_is_taken(folder):
    assert not [told for told in made(folder) if "nothing states" in told]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_attention_heads": 2, "head_dim": 128, "num_key_value_heads": 1}, "heads is 4"),
        ({"num_attention_heads": 8, "head_dim": 32, "num_key_value_heads": 2}, "head_dim is 64"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta is 10000.0"),
        ({"rope_parameters": LLAMA_3}, "rope_type is 'default'"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-06 there and 1e-05 here"),
        ({"hidden_act": "gelu"}, "hidden_act is 'silu' there and 'gelu' here"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is False"),
    ],
)
def test_another_base_of_the_same_shapes_is_refused_by_name(changes, told, folder):
    change_json(folder / "base" / "config.json", **changes)
    with refusal("stated.other-model", "run_config.yaml", told):
        made(folder)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ({"rotary_base": float("nan")}, "rope_theta is nan"),
        ({"rope_scaling": True, "rope_scaling_factor": 8.0}, "rope_type is 'llama3'"),
        ({"seq_len_interpolation_factor": 2.0}, "rope_type is 'linear'"),
        ({"position_embedding_type": "yarn"}, "rope_type is 'yarn'"),
        ({"position_embedding_type": "none"}, "rope_type is 'none'"),
        ({"num_query_groups": None}, "num_key_value_heads is 4"),
        ({"window_size": [32, 0]}, "window_size is [32, 0]"),
        ({"num_query_groups": "many"}, "num_key_value_heads is 'many'"),
        ({"activation_func": {"_target_": "torch._C._nn.gelu"}}, "hidden_act is 'gelu'"),
    ],
)
def test_what_was_trained_otherwise_is_refused_by_name(statement, told, folder):
    state(folder / "iter_0000000", **statement)
    with pytest.raises(EquipoiseError) as caught:
        made(folder)
    assert told in caught.value.message


def test_what_is_nowhere_stated_is_said_to_be_the_base_s(folder):
    state(folder / "iter_0000000", rotary_base="absent", layernorm_epsilon=None)
    assert (
        f"rope_theta, rms_norm_eps, which nothing states and {folder / 'base'}" in made(folder)[0]
    )
    every = "num_attention_heads, num_key_value_heads, head_dim, rope_theta"
    for text in ("[]", "model: []", None):
        shutil.rmtree(folder / "out")
        (folder / "iter_0000000" / "run_config.yaml").unlink()
        if text:
            (folder / "iter_0000000" / "run_config.yaml").write_text(text)
        assert made(folder)[0].startswith(every)


def test_scaling_of_llama_3_with_megatron_s_constants(tmp_path):
    stated = {"position_embedding_type": "rope", "scale_factor": 8.0}
    bridge = MegatronConfig(tmp_path / "run_config.yaml", stated)
    refuse_difference(bridge, LlamaConfig(rope_parameters=LLAMA_3), Path("base"))
    with refusal("stated.other-model", "original_max_position_embeddings is 8192"):
        other = LLAMA_3 | {"original_max_position_embeddings": 4096}
        refuse_difference(bridge, LlamaConfig(rope_parameters=other), Path("base"))


def test_a_window_that_was_not_trained(tmp_path):
    bridge = MegatronConfig(tmp_path / "run_config.yaml", {"window_size": None})
    refuse_difference(bridge, Qwen2Config(sliding_window=32), Path("base"))
    with refusal("stated.other-model", "sliding_window is None there and 32 here"):
        words = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}
        refuse_difference(bridge, Qwen2Config(**words), Path("base"))


def test_overrides_of_training_are_refused_by_name(step, model, tmp_path):
    folder, weights = step
    dcp.save(weights_of(model), checkpoint_id=weights)
    policy = {"model_name": str(model), "hf_config_overrides": {"rope_theta": 5e5}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"policy": policy}))
    with refusal("stated.config-overrides", "rope_theta"):
        convert(folder, tmp_path / "out")
    policy["hf_config_overrides"] = {"use_cache": False}
    (folder / "config.yaml").write_text(yaml.safe_dump({"policy": policy}))
    convert(folder, tmp_path / "out")
    (told, *_) = conversion(tmp_path / "out")["unchecked"]
    assert "head_dim" in told
