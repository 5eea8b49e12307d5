"""Families that transformers renames, fuses or ties while it loads them: every tensor, and logits.

Each is read as `save_pretrained` writes it, as a trainer's checkpoint has it (the model's own
names), and with an adapter; what is written has the names of `save_pretrained`.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from packaging.version import Version
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from tests.equipoise.checkpoints.samples import (
    SIZES,
    conversion,
    logits_of,
    made,
    random_weights,
    refused,
    same,
    weights_of,
)
from tests.refusals import holds

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "image_size": 28}
VISION |= {"num_attention_heads": 2, "patch_size": 14}
MAMBA = {"layers_block_type": ["mamba", "attention", "mlp"], "num_hidden_layers": 3}
MAMBA |= {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2}
HEAD = {"head_dim": 8}
TEXT = SIZES | HEAD | {"sliding_window": 16}
#: model_type -> settings, and the linear maps that an adapter changes.
FAMILIES = {
    "qwen3_moe": (SIZES | MOE | HEAD, ["q_proj", "o_proj"]),
    "nemotron_h": (SIZES | MAMBA | HEAD, ["q_proj", "up_proj"]),
    "gemma3": (
        {"text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 4},
        r".*language_model.*\.(q_proj|down_proj)",
    ),
    "gemma4_text": (TEXT | {"hidden_size_per_layer_input": 0}, ["q_proj", "down_proj"]),
    "gemma3_text": (TEXT, ["q_proj", "down_proj"]),
    "llama": (SIZES | {"tie_word_embeddings": True}, ["q_proj", "down_proj"]),
    "qwen3": (SIZES | HEAD, ["q_proj"]),
    "gpt_oss": (SIZES | HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2}, ["q_proj"]),
    "phi3": (SIZES | {"pad_token_id": 0}, ["qkv_proj"]),
    "olmo2": (SIZES, ["q_proj"]),
    "olmo3": (SIZES, ["q_proj"]),
    "mistral": (SIZES, ["q_proj"]),
    "granite": (SIZES, ["q_proj"]),
    "nemotron": (SIZES, ["q_proj"]),
    "smollm3": (SIZES | {"pad_token_id": 0}, ["q_proj"]),
}


@pytest.fixture(scope="session")
def families(tmp_path_factory):
    """Make a tiny model of a family once; returns its folder."""
    folders = {}

    def make(family):
        if family == "nemotron_h" and Version(transformers.__version__) < Version("5.8"):
            pytest.skip("transformers 5.5 knows no layer that is an MLP alone")
        if family not in folders:
            settings, _ = FAMILIES[family]
            config = AutoConfig.for_model(family, **settings)
            folders[family] = tmp_path_factory.mktemp(family)
            model = random_weights(AutoModelForCausalLM.from_config(config))
            model.save_pretrained(folders[family])
        return folders[family]

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_as_save_pretrained_writes_it(family, families, tmp_path):
    folder = families(family)
    assert same(made(folder, tmp_path / "out"), weights_of(folder))
    assert conversion(tmp_path / "out")["logits"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_by_the_names_that_a_trainer_has(family, families, step, tmp_path):
    folder = families(family)
    checkpoint, weights = step
    model = AutoModelForCausalLM.from_pretrained(folder)
    dcp.save(model.state_dict(), checkpoint_id=weights)
    assert same(made(checkpoint, tmp_path / "out", folder), weights_of(folder))
    out = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits_of(out), logits_of(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter(family, families, tmp_path):
    folder = families(family)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=FAMILIES[family][1])
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), settings)
    random_factors(adapted)
    adapted.save_pretrained(tmp_path / "a")
    merged = made(tmp_path / "a", tmp_path / "out", folder)
    assert merged.keys() == weights_of(folder).keys()
    adapter = AutoModelForCausalLM.from_pretrained(folder)
    expected = logits_of(PeftModel.from_pretrained(adapter, tmp_path / "a"))
    out = logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    assert (expected - logits_of(AutoModelForCausalLM.from_pretrained(folder))).abs().max() > 1e-4
    assert torch.allclose(out, expected, atol=1e-5)


def random_factors(adapted):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_tied_embeddings_beside_another_output_layer(family, families, step, tmp_path):
    folder = families(family)
    checkpoint, weights = step
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    dcp.save(state | {"lm_head.weight": state["lm_head.weight"] + 1}, checkpoint_id=weights)
    message = refused(checkpoint, tmp_path / "out", folder)
    assert holds(message, "verify.untied-copy | lm_head.weight")


def test_a_family_under_names_that_nobody_reads(families, step, tmp_path):
    folder = families("qwen3_moe")
    checkpoint, weights = step
    renamed = {name.replace("mlp", "feed"): t for name, t in weights_of(folder).items()}
    dcp.save(renamed, checkpoint_id=weights)
    message = refused(checkpoint, tmp_path / "out", folder)
    assert holds(message, "verify.missing-tensors | qwen3_moe")
