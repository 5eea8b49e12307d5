"""Adapters and their base: PEFT's own merging is the measure, in float32."""

import shutil
from pathlib import Path

import pytest
import torch
from peft import (
    IA3Config,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PromptTuningConfig,
    get_peft_model,
)
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from equipoise.checkpoints import convert as conversions
from equipoise.checkpoints import lora
from equipoise.checkpoints.convert import convert
from equipoise.checkpoints.lora import megatron_adapter
from equipoise.checkpoints.tensors import LazyTensor
from equipoise.files.errors import EquipoiseError
from tests.equipoise.checkpoints.samples import (
    SIZES,
    change_config,
    logits_of,
    made,
    random_weights,
    refused,
    save_adapter,
    weights_of,
)
from tests.refusals import holds

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 32}},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "norm"]},
        {"target_modules": ["lm_head", "q_proj"]},  # PEFT saves the layer below it, too
        {"target_modules": ["q_proj"], "layers_to_transform": [1]},
        {"target_modules": "all-linear"},
        {"init_lora_weights": "orthogonal"},
    ],
)
def test_is_what_peft_makes_of_it(settings, model, tmp_path):
    adapter = tmp_path / "adapter"
    wanted = save_adapter(model, adapter, **settings)
    own = made(adapter, tmp_path / "out")
    for name, tensor in own.items():
        assert torch.allclose(tensor.float(), wanted[name].float(), atol=4e-3), name
    base = weights_of(model)
    changed = {name for name in base if not torch.equal(base[name], own[name])}
    assert changed
    trained = any("norm" in module for module in settings.get("modules_to_save", ()))
    assert any("norm" in name for name in changed) == trained


@pytest.mark.parametrize("module", ["q_proj", "lm_head"])
def test_one_that_changes_nothing_neither_merges_nor_stays(module, model, tmp_path):
    """PEFT saves the layer below an adapter of the output layer, which is not a change."""
    base = AutoModelForCausalLM.from_pretrained(model)
    get_peft_model(base, LoraConfig(target_modules=[module])).save_pretrained(tmp_path / "a")
    assert holds(refused(tmp_path / "a", tmp_path / "out"), "lora.noop-merge")


def test_another_base(model, tied, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["lm_head"])
    message = refused(tmp_path / "a", tmp_path / "out", tied)
    assert holds(message, "lora.tied-output | lm_head.weight")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"use_dora": True}, "lora.other-tensor | lora_magnitude_vector"),
        ({"bias": "all", "lora_bias": True}, "lora.other-tensor | lora_B"),
        ({"peft_type": "PROMPT_TUNING"}, "lora.unknown-setting"),
        ({"peft_type": None}, "lora.refused-by-peft"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "lora.other-tensor | layers.2"),
        ({"trainable_token_indices": [1, 2]}, "lora.other-tensor | trainable_tokens_delta"),
        ({"alora_invocation_tokens": [7]}, "lora.refused-by-peft"),
        ({"megatron_config": {"a": 1}}, "lora.foreign-code"),
        ({"a_key_of_a_later_peft": 0.5}, "lora.unknown-setting | a_key_of_a_later_peft"),
        ({"init_lora_weights": "pissa"}, "lora.changed-base | pissa"),
        ({"r": 8}, "lora.other-tensor | (4, 32) | (8, 32)"),
        ({"r": 0}, "lora.refused-by-peft"),
        ({"lora_alpha": "16"}, "lora.refused-by-peft"),
        ({"rank_pattern": {"(": 4}}, "lora.refused-by-peft"),
        ({"rank_pattern": [4]}, "lora.refused-by-peft"),
        ({"base_model_name_or_path": None}, "convert.unstated-model"),
        ({"base_model_name_or_path": "/gone/model"}, "model.no-folder | the base of | /gone/model"),
    ],
)
def test_another_form(changes, told, model, tmp_path):
    save_adapter(model, tmp_path / "a")
    change_config(tmp_path / "a", **changes)
    assert holds(refused(tmp_path / "a", tmp_path / "out"), told)


KINDS = {
    "dora": LoraConfig(use_dora=True, target_modules=["q_proj", "up_proj"]),
    "embeddings": LoraConfig(target_modules=["embed_tokens", "q_proj"]),
    "tokens": LoraConfig(trainable_token_indices=[0, 7, 14], target_modules=["q_proj"]),
    "lora_bias": LoraConfig(lora_bias=True, target_modules=["q_proj"]),
    "bias": LoraConfig(bias="all", target_modules=["q_proj"]),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "loha": LoHaConfig(target_modules=["q_proj", "up_proj"]),
    "oft": OFTConfig(target_modules=["q_proj"], oft_block_size=8),
    "experts": LoraConfig(
        target_parameters=["mlp.experts.gate_up_proj"], target_modules=[], lora_dropout=0.0
    ),
}
#: Kind -> another base than a Llama: experts, or linear maps that have a bias.
BASES = {
    "experts": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "bias": ("qwen2", {}),
    "lora_bias": ("qwen2", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_are_merged_by_peft(kind, tmp_path):
    family, more = BASES.get(kind, ("llama", {}))
    shape = AutoConfig.for_model(family, **SIZES, **more, tie_word_embeddings=False)
    random_weights(AutoModelForCausalLM.from_config(shape)).save_pretrained(tmp_path / "base")
    settings = KINDS[kind]
    settings.task_type = "CAUSAL_LM"
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                noise = 0.3 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(parameter + noise)
    adapted.save_pretrained(tmp_path / "a")
    expected = logits_of(adapted)
    own = made(tmp_path / "a", tmp_path / "out", tmp_path / "base")
    assert own.keys() == weights_of(tmp_path / "base").keys()
    answers = logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    before = logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    assert torch.allclose(answers, expected, atol=1e-5)
    assert (before - expected).abs().max() > 5e-5


def test_peft_needs_the_base_in_memory(model, tmp_path, monkeypatch):
    save_adapter(model, tmp_path / "a", use_dora=True)
    monkeypatch.setattr(lora, "free_memory", lambda: 10**4)
    assert holds(refused(tmp_path / "a", tmp_path / "out"), "lora.large-base")


def test_an_adapter_of_no_weights_stays_one(model, tmp_path):
    settings = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), settings).save_pretrained(
        tmp_path / "a"
    )
    assert holds(refused(tmp_path / "a", tmp_path / "out", model), "lora.unmergeable")
    convert(tmp_path / "a", tmp_path / "kept", keep_adapter=True)
    assert (tmp_path / "kept" / "adapter_model.safetensors").exists()


def test_several_in_one_folder(model, tmp_path):
    for name in ("first", "second"):
        save_adapter(model, tmp_path / "both" / name, target_modules=["q_proj"])
    message = refused(tmp_path / "both", tmp_path / "out")
    assert holds(message, "convert.several-adapters | first, second")


UP = "base_model.model.model.layers.1.mlp.up_proj"


A, ROW = f"{UP}.lora_A.weight", "layers.1.mlp.up_proj"
VECTOR = f"{UP}.lora_magnitude_vector"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({f"{UP}.lora_B.weight": None}, f"lora.other-tensor | {ROW}.lora_B.weight is missing"),
        ({A: torch.ones(4, 99)}, f"lora.other-tensor | {ROW} | (4, 99) | (4, 32)"),
        ({A: torch.full((4, 32), torch.nan)}, f"lora.infinite-factors | model.{ROW}.weight"),
        ({VECTOR: torch.ones(48)}, f"lora.extra-tensor | {ROW}.lora_magnitude_vector"),
        ({"base_model.model.other.weight": torch.ones(4)}, "lora.extra-tensor | other.weight"),
    ],
)
def test_a_file_that_does_not_fit(change, told, model, tmp_path):
    save_adapter(model, tmp_path / "a")
    tensors = {n: t for n, t in (weights_of(tmp_path / "a") | change).items() if t is not None}
    save_file(tensors, tmp_path / "a" / "adapter_model.safetensors")
    assert holds(refused(tmp_path / "a", tmp_path / "out"), told)


def test_a_file_that_is_cut_off_or_missing(model, tmp_path):
    save_adapter(model, tmp_path / "a")
    file = tmp_path / "a" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    assert f"{file} is damaged or cut off" in refused(tmp_path / "a", tmp_path / "out")
    file.unlink()
    assert f"{file} is missing" in refused(tmp_path / "a", tmp_path / "out")


def test_a_vocabulary_that_was_resized(model, tmp_path):
    longer = tmp_path / "longer"
    resized = AutoModelForCausalLM.from_pretrained(model)
    resized.resize_token_embeddings(64, mean_resizing=False)
    resized.save_pretrained(longer)
    saved = ["embed_tokens", "lm_head"]
    words = {"target_modules": ["q_proj"], "modules_to_save": saved}
    save_adapter(longer, tmp_path / "a", **words)
    change_config(tmp_path / "a", base_model_name_or_path=str(model))
    message = refused(tmp_path / "a", tmp_path / "out")
    assert holds(message, "lora.other-tensor | (64, 32) | (61, 32)")
    assert "resize_token_embeddings" in message


def test_tied_embeddings_that_were_replaced_together(tied, tmp_path):
    words = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    wanted = save_adapter(tied, tmp_path / "a", target_modules=["q_proj"], **words)
    own = made(tmp_path / "a", tmp_path / "out")
    assert "lm_head.weight" not in own
    for name, tensor in own.items():
        assert torch.allclose(tensor, wanted[name], atol=1e-5), name
    assert not torch.equal(
        own["model.embed_tokens.weight"], weights_of(tied)["model.embed_tokens.weight"]
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"target_modules": ["q_proj", "lm_head"]}, "lora.tied-output | lm_head.weight"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "verify.other-logits"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "verify.untied-copy"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, "verify.untied-copy"),
    ],
)
@pytest.mark.parametrize("twice", [False, True])
def test_tied_embeddings_are_not_torn_apart(twice, settings, told, tied, tmp_path):
    """Nor where the base's file has them twice, and a change of one would be left out again."""
    save_adapter(tied, tmp_path / "a", **settings)
    base = tmp_path / "base"
    shutil.copytree(tied, base)
    if twice:
        weights = weights_of(tied)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        save_file(weights, base / "model.safetensors")
    assert holds(refused(tmp_path / "a", tmp_path / "out", base), told)


def test_a_base_of_other_numbers(model, tmp_path):
    """bitsandbytes packs the numbers, GPTQ renames them, FP8 keeps their shape."""
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    weights = weights_of(model)
    name = "model.layers.0.self_attn.q_proj.weight"
    packed = torch.zeros(512, 1, dtype=torch.uint8)
    base = shutil.copytree(model, tmp_path / "base")
    for variant in (
        weights | {name: packed},
        weights | {name: weights[name].to(torch.float8_e4m3fn)},
        {n: t for n, t in weights.items() if n != name} | {f"{name[:-7]}.qweight": packed},
    ):
        save_file(variant, base / "model.safetensors")
        message = refused(tmp_path / "a", tmp_path / "out", base)
        assert holds(message, f"lora.quantised-base | {name}")


def test_another_base_of_the_same_shapes_is_said(model, tmp_path, capsys):
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    other = tmp_path / "other"
    shutil.copytree(model, other)
    made(tmp_path / "a", tmp_path / "out", base=other)
    told = "".join(capsys.readouterr())
    assert f"was trained on {model}" in told.replace("\n", " ")
    made(tmp_path / "a", tmp_path / "again", base=model)
    assert "was trained on" not in "".join(capsys.readouterr())


def test_the_revision_of_the_base_is_taken(model, tmp_path, monkeypatch):
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    change_config(tmp_path / "a", base_model_name_or_path="a/name", revision="v2")
    asked = []
    monkeypatch.setattr(conversions, "located", str)  # the tests reach no hub
    monkeypatch.setattr(
        conversions,
        "snapshot_download",
        lambda name, revision, **_: asked.append((name, revision)) or str(model),
    )
    made(tmp_path / "a", tmp_path / "out")
    made(tmp_path / "a", tmp_path / "other", base="another/name")
    assert asked == [("a/name", "v2"), ("another/name", None)]


SHAPE = {"model_type": "llama", "num_hidden_layers": 1, "vocab_size": 61, "hidden_size": 32}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
PEFT = {"dim": 4, "alpha": 8, "_target_": "megatron.bridge.peft.lora.LoRA"}
PROJECTION = "decoder.layers.0.self_attention.linear_proj.adapter"
IN, OUT = f"{PROJECTION}.linear_in.weight", f"{PROJECTION}.linear_out.weight"
FACTORS = {IN: torch.ones(4, 32), OUT: torch.ones(32, 4)}


def told_of_megatron(tensors, **peft):
    lazy = {n: LazyTensor(tuple(t.shape), t.dtype, lambda t=t: t) for n, t in tensors.items()}
    with pytest.raises(EquipoiseError) as caught:
        megatron_adapter(lazy, PEFT | peft, SHAPE)
    return str(caught.value)


def test_an_adapter_of_megatron_s_for_which_there_is_no_weight_is_not_dropped():
    lost = "decoder.layers.0.mlp.experts.linear_fc1.adapter.linear_in.weight"
    assert lost in told_of_megatron(FACTORS | {lost: torch.ones(4, 32)})
    assert OUT in told_of_megatron({OUT: torch.ones(32, 4)})


def test_another_rank_or_kind_of_megatron_s():
    assert "run_config.yaml says 8" in told_of_megatron(FACTORS, dim=8)
    assert "DoRA's" in told_of_megatron(FACTORS, _target_="megatron.bridge.peft.dora.DoRA")
    assert "alpha is None" in told_of_megatron(FACTORS, alpha=None)


def test_can_stay_an_adapter(model, step, tmp_path):
    """With the name of its base, which NeMo-RL may leave out, and the tokenizer."""
    folder, weights = step
    save_adapter(model, weights)
    change_config(weights, base_model_name_or_path=None)
    out = tmp_path / "out"
    convert(folder, out, keep_adapter=True)
    assert weights_of(out).keys() == weights_of(weights).keys()
    assert {"tokenizer.json", "adapter_config.json"} <= {path.name for path in out.iterdir()}
    base = AutoModelForCausalLM.from_pretrained(model)
    assert PeftModel.from_pretrained(base, out).peft_config["default"].base_model_name_or_path == (
        str(model)
    )
