"""Adapters and their base: PEFT's own merging is the measure, in float32."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from equipoise.conversion.tensors import ConversionError
from equipoise.conversion.to_hugging_face import convert
from equipoise.terminal.console import Reporter
from tests.equipoise.conversion.samples import change_config, save_adapter, weights_of


def merged(adapter, out, base=None):
    convert(adapter, out, Reporter(), base=base and str(base))
    return weights_of(out)


def refused(adapter, tmp_path, base=None):
    with pytest.raises(ConversionError) as caught:
        convert(adapter, tmp_path / "out", Reporter(), base=base and str(base))
    assert not (tmp_path / "out").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 32}},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ],
)
def test_is_what_peft_makes_of_it(settings, model, tmp_path):
    adapter = tmp_path / "adapter"
    wanted = save_adapter(model, adapter, **settings)
    own = merged(adapter, tmp_path / "out")
    for name, tensor in own.items():
        assert torch.allclose(tensor.float(), wanted[name].float(), atol=4e-3), name
    base = weights_of(model)
    changed = {name for name in base if not torch.equal(base[name], own[name])}
    assert changed
    assert not any("norm" in name for name in changed)


def test_is_computed_in_float32_and_then_cast(model, tmp_path):
    adapter = tmp_path / "adapter"
    save_adapter(model, adapter)
    own, base, factors = merged(adapter, tmp_path / "out"), weights_of(model), weights_of(adapter)
    name = "model.layers.1.mlp.up_proj"
    a, b = (factors[f"base_model.model.{name}.lora_{x}.weight"].float() for x in "AB")
    weight = base[f"{name}.weight"]
    assert torch.equal(own[f"{name}.weight"], (weight.float() + 2.0 * (b @ a)).to(weight.dtype))


def test_answers_as_base_and_adapter_do(tied, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    save_adapter(tied, adapter)
    merged(adapter, tmp_path / "out")
    assert "of base and adapter" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.tie_word_embeddings


def test_one_that_changes_nothing(model, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(model)
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "a")
    assert "changes nothing" in refused(tmp_path / "a", tmp_path)


def test_another_base(model, tied, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["lm_head"])
    assert "lm_head.weight, which its base has not" in refused(tmp_path / "a", tmp_path, tied)


def test_another_size(model, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["lm_head"])
    other = AutoModelForCausalLM.from_pretrained(model)
    other.resize_token_embeddings(80)
    other.save_pretrained(tmp_path / "other")
    message = refused(tmp_path / "a", tmp_path, tmp_path / "other")
    assert "lm_head.weight is (61, 32), and that of its base (80, 32)" in message


def test_embeddings_that_are_tied(tied, tmp_path):
    save_adapter(tied, tmp_path / "a", target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    assert "which is the output layer, too" in refused(tmp_path / "a", tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"bias": "all"}, "bias is all"),
        ({"r": 8}, "has rank 4 and 4, and adapter_config.json says 8"),
        ({"base_model_name_or_path": None}, "--base"),
    ],
)
def test_another_form(changes, told, model, tmp_path):
    save_adapter(model, tmp_path / "a")
    change_config(tmp_path / "a", **changes)
    assert told in refused(tmp_path / "a", tmp_path)


def test_can_stay_an_adapter(model, step, tmp_path):
    """With the name of its base, which NeMo-RL may leave out, and the tokenizer."""
    folder, weights = step
    save_adapter(model, weights)
    change_config(weights, base_model_name_or_path=None)
    out = tmp_path / "out"
    convert(folder, out, Reporter(), keep_adapter=True)
    assert weights_of(out).keys() == weights_of(weights).keys()
    assert {"tokenizer.json", "adapter_config.json"} <= {path.name for path in out.iterdir()}
    base = AutoModelForCausalLM.from_pretrained(model)
    assert PeftModel.from_pretrained(base, out).peft_config["default"].base_model_name_or_path == (
        str(model)
    )


def test_without_a_change_it_cannot_stay_either(model, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(model)
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "a")
    with pytest.raises(ConversionError, match="changes nothing"):
        convert(tmp_path / "a", tmp_path / "out", Reporter(), keep_adapter=True)
