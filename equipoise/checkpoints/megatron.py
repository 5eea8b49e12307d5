"""Megatron's names and layout of a Llama, Qwen2 or Qwen3, put into Hugging Face's.

One table says where each tensor of Hugging Face's lies. Megatron keeps Q, K and V of an attention
group side by side in one tensor, and gate above up in another; the norm before a linear map belongs
to that map with Transformer Engine and is apart without it.

For other families, and for the way back, Megatron-Bridge is asked in a process of its own, in
whichever Python has it. What it loads and writes stays apart from this process: its environment is
NeMo-RL's and not ours, and Megatron's state is a process's.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from equipoise.checkpoints.tensors import LazyTensor, Tensors, refuse
from equipoise.config.nemo_rl.installation import (
    MEGATRON_PYTHON,
    find_megatron_python,
    without_python_settings,
)

FAMILIES = ("llama", "qwen2", "qwen3")
_PREFIXES = ("", "module.", "model.")
#: What a checkpoint holds besides the weights of the model.
_NO_WEIGHTS = re.compile(r"_extra_state|inv_freq$|^(optimizer|rng_state|chained|param_groups)")


@dataclass(frozen=True, slots=True)
class Shape:
    """The layout's parameters, from Hugging Face's configuration."""

    layers: int
    heads: int
    groups: int
    head: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """From config.json."""
        family = config.get("model_type")
        if family not in FAMILIES:
            refuse(
                "megatron.unknown-family",
                f"the model is a {family}, and what is read here is {', '.join(FAMILIES)}",
                "Take Megatron-Bridge's own export, see docs/checkpoints.md.",
            )
        heads = int(config["num_attention_heads"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            groups=int(config.get("num_key_value_heads") or heads),
            head=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )


#: How a tensor of Hugging Face's is cut out of Megatron's.
Cut = Callable[[Shape, LazyTensor], LazyTensor]


def _whole(_: Shape, tensor: LazyTensor) -> LazyTensor:
    return tensor


def _heads(shape: Shape, tensor: LazyTensor, count: int, which: slice) -> LazyTensor:
    """Take `count` heads in all from [groups, Qs of a group + K + V, head, ...]."""
    below = tensor.shape[1:]
    rows = (shape.heads + 2 * shape.groups) * shape.head
    if tensor.shape[0] != rows or shape.heads % shape.groups:
        refuse(
            "megatron.other-heads",
            f"Q, K and V have {tensor.shape[0]} rows together; {shape.heads} heads of "
            f"{shape.head} in {shape.groups} groups, as config.json says, have {rows}",
            "Name the model that training began with: --base.",
        )

    def read() -> torch.Tensor:
        grouped = tensor.read().reshape(shape.groups, -1, shape.head, *below)
        return grouped[:, which].reshape(-1, *below)

    return LazyTensor((count * shape.head, *below), tensor.dtype, read)


#: Hugging Face's linear map of a layer -> Megatron's, and which part of it.
LINEAR: Mapping[str, tuple[str, Cut]] = {
    "self_attn.q_proj": (
        "self_attention.linear_qkv",
        lambda shape, tensor: _heads(shape, tensor, shape.heads, slice(-2)),
    ),
    "self_attn.k_proj": (
        "self_attention.linear_qkv",
        lambda shape, tensor: _heads(shape, tensor, shape.groups, slice(-2, -1)),
    ),
    "self_attn.v_proj": (
        "self_attention.linear_qkv",
        lambda shape, tensor: _heads(shape, tensor, shape.groups, slice(-1, None)),
    ),
    "self_attn.o_proj": ("self_attention.linear_proj", _whole),
    "mlp.gate_proj": ("mlp.linear_fc1", lambda _, tensor: tensor[: tensor.shape[0] // 2]),
    "mlp.up_proj": ("mlp.linear_fc1", lambda _, tensor: tensor[tensor.shape[0] // 2 :]),
    "mlp.down_proj": ("mlp.linear_fc2", _whole),
}
#: Hugging Face's norm of a layer -> Megatron's, with and without Transformer Engine.
_NORMS: Mapping[str, tuple[str, ...]] = {
    "input_layernorm.weight": (
        "self_attention.linear_qkv.layer_norm_weight",
        "input_layernorm.weight",
    ),
    "post_attention_layernorm.weight": (
        "mlp.linear_fc1.layer_norm_weight",
        "pre_mlp_layernorm.weight",
    ),
    "self_attn.q_norm.weight": ("self_attention.q_layernorm.weight",),
    "self_attn.k_norm.weight": ("self_attention.k_layernorm.weight",),
}


def prefix_of(tensors: Tensors) -> str:
    """Return the prefix of Megatron's names."""
    for prefix in _PREFIXES:
        if any(name.startswith((f"{prefix}decoder.", f"{prefix}embedding.")) for name in tensors):
            return prefix
    some = ", ".join(list(tensors)[:3]) or "nothing"
    return refuse("megatron.foreign-names", f"the names are not Megatron's: it holds {some}")


@dataclass(slots=True)
class _TensorPool:
    """Megatron's tensors without their prefix, and which of them were read."""

    tensors: Tensors
    names_read: set[str] = field(default_factory=set)

    def first(self, *names: str) -> LazyTensor | None:
        """Return the first of these tensors that the pool has, and note its name."""
        name = next((name for name in names if name in self.tensors), None)
        if name is None:
            return None
        self.names_read.add(name)
        return self.tensors[name]

    def require(self, name: str) -> LazyTensor:
        return self.first(name) or refuse(
            "megatron.missing-tensor", f"the checkpoint has no {name}"
        )

    def remainder(self) -> list[str]:
        return sorted(self.tensors.keys() - self.names_read)


def to_hugging_face(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """Hugging Face's tensors in Megatron's, which are one for each layer."""
    shape, prefix = Shape.of(config), prefix_of(tensors)
    pool = _TensorPool(
        {n.removeprefix(prefix): t for n, t in tensors.items() if not _NO_WEIGHTS.search(n)}
    )
    converted = {"model.embed_tokens.weight": _of_words(pool, "embedding.word_embeddings", shape)}
    for number in range(shape.layers):
        converted |= _of_layer(pool, number, shape)
    converted["model.norm.weight"] = pool.require("decoder.final_layernorm.weight")
    if not shape.tied:
        converted["lm_head.weight"] = _of_words(pool, "output_layer", shape)
    if extra := pool.remainder():
        refuse(
            "megatron.extra-tensor",
            f"the checkpoint holds {extra[0]} ({len(extra)} such), which config.json knows not of",
        )
    return converted


def _of_layer(pool: _TensorPool, number: int, shape: Shape) -> dict[str, LazyTensor]:
    layer = {}
    theirs, ours = f"decoder.layers.{number}.", f"model.layers.{number}."
    for name, candidates in _NORMS.items():
        if norm := pool.first(*(theirs + candidate for candidate in candidates)):
            layer[ours + name] = norm
    for name, (megatron_name, cut) in LINEAR.items():
        layer[f"{ours}{name}.weight"] = cut(shape, pool.require(f"{theirs}{megatron_name}.weight"))
        if bias := pool.first(f"{theirs}{megatron_name}.bias"):
            layer[f"{ours}{name}.bias"] = cut(shape, bias)
    return layer


def _of_words(pool: _TensorPool, name: str, shape: Shape) -> LazyTensor:
    """Without the rows with which Megatron fills the vocabulary up."""
    tensor = pool.require(f"{name}.weight")
    if tensor.shape[0] < shape.vocabulary:
        refuse(
            "megatron.other-vocabulary",
            f"the checkpoint has {tensor.shape[0]:,} words, and config.json {shape.vocabulary:,}",
            "Name the model that training began with, see --base.",
        )
    return tensor[: shape.vocabulary]


# --- Megatron-Bridge ------------------------------------------------------------------------------

_SCRIPT = Path(__file__).with_name("bridge_script.py")
#: Those of a job of several processes, in which a conversion may run, too.
_OF_A_JOB = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_LINES_SHOWN = 12

#: Package -> version.
Versions = Mapping[str, str]


def import_model(model: Path, destination: Path) -> Versions:
    """Make Megatron's torch_dist of a folder of Hugging Face's. Raises `EquipoiseError`."""
    return _ask("import", model, destination)


def export_model(checkpoint: Path, config: Path, destination: Path) -> Versions:
    """Make Hugging Face's safetensors of an `iter_N`; `config` is a folder with config.json.

    Raises `EquipoiseError`.
    """
    return _ask("export", checkpoint, config, destination)


def _ask(action: str, *folders: Path) -> Versions:
    python = find_megatron_python()
    # -P: the script's own folder has a module megatron, too, which is not theirs.
    command = [
        str(python),
        "-P",
        str(_SCRIPT),
        action,
        *(str(folder.resolve()) for folder in folders),
    ]
    # One process that sees no GPU, whatever the machine has.
    variables = without_python_settings(os.environ)
    environment = {name: value for name, value in variables.items() if name not in _OF_A_JOB}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LINES_SHOWN:])
        refuse(
            "megatron.bridge-failure",
            f"Megatron-Bridge in {python} failed ({action} of {folders[0]}):\n{last}",
            f"{MEGATRON_PYTHON} names another Python that has it. NeMo-RL's container has the one "
            "that its runs use.",
        )
    versions: Versions = json.loads(done.stdout.splitlines()[-1])
    return versions
