"""Tiny checkpoints in the formats that runs write, by torch's and PEFT's own writers."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from equipoise.checkpoints.convert import convert
from equipoise.files.errors import EquipoiseError
from equipoise.run.seals import checkpoint_at

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def random_weights(model, seed=7):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def logits_of(model):
    with torch.no_grad():
        return model.eval()(torch.arange(24).reshape(2, 12)).logits


def weights_of(folder):
    """All tensors of a folder of Hugging Face's."""
    whole = {}
    for path in sorted(folder.glob("*.safetensors")):
        whole |= load_file(path)
    return whole


def same(first, second):
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name])
        for name in first
    )


def save_adapter(base, folder, seed=3, **settings):
    """A trained adapter; returns what PEFT itself makes of the base with it."""
    words = {"r": 4, "lora_alpha": 8, "target_modules": LINEAR} | settings
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**words))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    adapted.save_pretrained(folder)
    return adapted.merge_and_unload().state_dict()


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_config(folder, **changes):
    change_json(folder / "adapter_config.json", **changes)


def conversion(folder):
    """The checks that conversion.json lists."""
    return json.loads((folder / "conversion.json").read_text())["checked"]


def made(source, destination, base=None):
    """The tensors of what `convert` made."""
    convert(checkpoint_at(source), destination, base=base and str(base))
    return weights_of(destination)


def refused(source, destination, base=None):
    """The line and the code of a conversion that leaves nothing behind."""
    with pytest.raises(EquipoiseError) as caught:
        convert(checkpoint_at(source), destination, base=base and str(base))
    assert not list(destination.parent.glob(f"*{destination.name}*"))
    assert "\n" not in caught.value.message
    return f"{caught.value} [{caught.value.code}]"
