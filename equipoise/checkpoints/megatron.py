"""Megatron's names and layout of a Llama, Qwen2 or Qwen3, put into Hugging Face's.

One table says where each tensor of Hugging Face's lies. Megatron keeps Q, K and V of an attention
group side by side in one tensor, and gate above up in another; the norm before a linear map belongs
to that map with Transformer Engine and is apart without it.

For other families, and for the way back, Megatron-Bridge is asked in a process of its own, in
whichever Python has it. It runs apart from this process: its environment is NeMo-RL's and not ours,
and Megatron's state is a process's.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig

from equipoise.checkpoints.tensors import LazyTensor, Tensors, refuse, yaml_mapping
from equipoise.files.model_shape import FAMILIES, ModelShape, shape_of
from equipoise.files.nemo_rl import (
    MEGATRON_PYTHON,
    find_megatron_python,
    without_python_settings,
)

_PREFIXES = ("", "module.", "model.")
#: What a checkpoint holds besides the weights of the model.
_NO_WEIGHTS = re.compile(r"_extra_state|inv_freq$|^(optimizer|rng_state|chained|param_groups)")


def shape_of_model(config: Mapping[str, Any]) -> ModelShape:
    """The layout's parameters, from Hugging Face's configuration."""
    family = config.get("model_type")
    if family not in FAMILIES:
        refuse(
            "megatron.unknown-family",
            f"the model is a {family}, and what is read here is {', '.join(FAMILIES)}",
            "Take Megatron-Bridge's own export, see docs/checkpoints.md.",
        )
    return shape_of(config)


#: How a tensor of Hugging Face's is cut out of Megatron's.
Cut = Callable[[ModelShape, LazyTensor], LazyTensor]


def _whole(_: ModelShape, tensor: LazyTensor) -> LazyTensor:
    return tensor


def _heads(shape: ModelShape, tensor: LazyTensor, count: int, which: slice) -> LazyTensor:
    """Take `count` heads in all from [groups, Qs of a group + K + V, head, ...]."""
    below = tensor.shape[1:]
    rows = (shape.heads + 2 * shape.kv_heads) * shape.head_size
    if tensor.shape[0] != rows or shape.heads % shape.kv_heads:
        refuse(
            "megatron.other-heads",
            f"Q, K and V have {tensor.shape[0]} rows together; {shape.heads} heads of "
            f"{shape.head_size} in {shape.kv_heads} groups, as config.json says, have {rows}",
            "Name the model that training began with: --base.",
        )

    def read() -> torch.Tensor:
        grouped = tensor.read().reshape(shape.kv_heads, -1, shape.head_size, *below)
        return grouped[:, which].reshape(-1, *below)

    return LazyTensor((count * shape.head_size, *below), tensor.dtype, read)


#: Hugging Face's linear map of a layer -> Megatron's, and which part of it.
LINEAR: Mapping[str, tuple[str, Cut]] = {
    "self_attn.q_proj": (
        "self_attention.linear_qkv",
        lambda shape, tensor: _heads(shape, tensor, shape.heads, slice(-2)),
    ),
    "self_attn.k_proj": (
        "self_attention.linear_qkv",
        lambda shape, tensor: _heads(shape, tensor, shape.kv_heads, slice(-2, -1)),
    ),
    "self_attn.v_proj": (
        "self_attention.linear_qkv",
        lambda shape, tensor: _heads(shape, tensor, shape.kv_heads, slice(-1, None)),
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


def _without_padding(tensor: LazyTensor, shape: ModelShape) -> LazyTensor:
    """Drop the rows with which Megatron pads the vocabulary."""
    if tensor.shape[0] < shape.vocab:
        refuse(
            "megatron.other-vocabulary",
            f"the checkpoint has {tensor.shape[0]:,} words, and config.json {shape.vocab:,}",
            "Name the model that training began with, see --base.",
        )
    return tensor[: shape.vocab]


def to_hugging_face(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """Hugging Face's tensors in Megatron's, which are one for each layer."""
    shape, prefix = shape_of_model(config), prefix_of(tensors)
    pool = {n.removeprefix(prefix): t for n, t in tensors.items() if not _NO_WEIGHTS.search(n)}
    read: set[str] = set()

    def first(*names: str) -> LazyTensor | None:
        """The first of these tensors that there is."""
        name = next((name for name in names if name in pool), "")
        read.add(name)
        return pool.get(name)

    def require(name: str) -> LazyTensor:
        return first(name) or refuse("megatron.missing-tensor", f"the checkpoint has no {name}")

    words = require("embedding.word_embeddings.weight")
    converted = {"model.embed_tokens.weight": _without_padding(words, shape)}
    for number in range(shape.layers):
        theirs, ours = f"decoder.layers.{number}.", f"model.layers.{number}."
        for name, candidates in _NORMS.items():
            if norm := first(*(theirs + candidate for candidate in candidates)):
                converted[ours + name] = norm
        for name, (map_name, cut) in LINEAR.items():
            converted[f"{ours}{name}.weight"] = cut(shape, require(f"{theirs}{map_name}.weight"))
            if bias := first(f"{theirs}{map_name}.bias"):
                converted[f"{ours}{name}.bias"] = cut(shape, bias)
    converted["model.norm.weight"] = require("decoder.final_layernorm.weight")
    if not shape.tied:
        converted["lm_head.weight"] = _without_padding(require("output_layer.weight"), shape)
    if extra := sorted(pool.keys() - read):
        refuse(
            "megatron.extra-tensor",
            f"the checkpoint holds {extra[0]} ({len(extra)} such), which config.json knows not of",
        )
    return converted


# --- What a checkpoint states of its model ------------------------------------------------------
# Shapes do not tell 8 heads from 16, or one base of the rotary embeddings from another, and a wrong
# one loads without an error and gives another model. So what a checkpoint states is compared with
# config.json, and what a Llama, Qwen2 or Qwen3 of Hugging Face's cannot do is refused by name.
#
# NeMo 2 has its settings, Megatron-core's, in context/model.yaml, defaults included. It names
# Python classes, and is read as data.

Settings = Mapping[str, Any]
_NAME_IT = "Name the model that training began with, if its configuration says the same: --base."
#: Key -> the only value of a Llama, Qwen2 or Qwen3, also the default; what is not compared below.
_ONLY: Mapping[str, object] = {
    "normalization": "rmsnorm",
    "gated_linear_unit": True,
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "add_bias_linear": False,
    "layernorm_zero_centered_gamma": False,
    "apply_residual_connection_post_layernorm": False,
    "num_moe_experts": None,
    "multi_latent_attention": False,
    "mtp_num_layers": None,
    "heterogeneous_block_specs": False,
    "no_rope_freq": None,
    "window_size": None,
    "softmax_scale": None,
    "apply_embedding_scaling": False,
    "is_hybrid_model": False,
    "softmax_type": "vanilla",
    "attention_output_gate": False,
    "qk_l2_norm": False,
    "use_mup": False,
    "experimental_attention_variant": None,
    "linear_attention_freq": None,
    "activation_func_clamp_value": None,
    "glu_linear_offset": 0.0,
}
#: Llama 3's scaling of positions: Hugging Face's name -> NeMo's, and its default.
_LLAMA3_SCALING = {
    "factor": ("scale_factor", 8.0),
    "low_freq_factor": ("low_freq_factor", 1.0),
    "high_freq_factor": ("high_freq_factor", 4.0),
    "original_max_position_embeddings": ("old_context_len", 8192),
}


@dataclass(frozen=True, slots=True)
class MegatronConfig:
    """A model's settings by Megatron-core's names, and the file they are from."""

    path: Path
    settings: Settings


def activation(value: object) -> object:
    """A function by its name; words in lower case, anything else as it is."""
    if isinstance(value, Mapping) and "_target_" in value:
        value = str(value["_target_"]).rpartition(".")[2]
    value = value.lower() if isinstance(value, str) else value
    return "silu" if value == "swish" else value


def stated_by(path: Path, section: str) -> MegatronConfig | None:
    """Return what `section` of a YAML file states of the model, if anything."""
    settings = yaml_mapping(path).get(section) if path.is_file() else None
    if not isinstance(settings, Mapping):
        return None
    if settings.get("rope_scaling"):  # the other numbers of Llama 3 are constants of Megatron-core
        settings = {**settings, "scale_factor": settings.get("rope_scaling_factor")}
    return MegatronConfig(path, settings)


#: config.json's name -> Megatron-core's, where the value is the same.
_SAME = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "rms_norm_eps": "layernorm_epsilon",
    "tie_word_embeddings": "share_embeddings_and_output_weights",
    "rope_theta": "rotary_base",
    "vocab_size": "vocab_size",
}
#: What config.json may lack, as it lacks these in most models.
_DEFAULTS = {"partial_rotary_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
#: Scaling of positions by Megatron-core's YaRN -> config.json's name.
_YARN = {
    "yarn_rotary_scaling_factor": "factor",
    "yarn_original_max_position_embeddings": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
#: What changes a forward pass and no shape tells.
NOT_IN_SHAPES = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "rope_type"),
    *("rms_norm_eps", "hidden_act", "sliding_window", "tie_word_embeddings", "vocab_size"),
)


def refuse_difference(
    stated: MegatronConfig, config: PreTrainedConfig, named: Path
) -> tuple[str, ...]:
    """Refuse a configuration, that of the folder `named`, which is not the one that was trained.

    Returns the fields that nothing states, which are thus the base's.
    """
    says, has = statements(stated), _of_hugging_face(config)
    differences = "; ".join(
        f"{name} is {value!r} there and {has.get(name)!r} here"
        for name, value in says.items()
        if value != has.get(name)
    )
    if differences:
        refuse(
            "stated.other-model",
            f"{stated.path} states another model than {named / 'config.json'}: {differences}",
            "Name the model that training began with: --base. If this is the one, write what was "
            "trained into a copy of its config.json.",
        )
    return tuple(name for name in NOT_IN_SHAPES if name not in says)


def statements(stated: MegatronConfig) -> dict[str, Any]:
    """Return what the settings say, by config.json's names.

    Raises `EquipoiseError` for what no config.json of a Llama, Qwen2 or Qwen3 can say.
    """
    settings = stated.settings
    for key, only in _ONLY.items():
        value = settings.get(key)
        value = value.lower() if isinstance(value, str) else value
        if value not in (only, None) and (value or only):
            refuse(
                "stated.unknown-form",
                f"{stated.path}: {key} is {short(value)}; what is read here is {only}",
                _NAME_IT,
            )
    says = {n: settings[key] for n, key in _SAME.items() if settings.get(key) is not None}
    heads = settings.get("num_attention_heads")
    if "num_query_groups" in settings:
        says["num_key_value_heads"] = settings["num_query_groups"] or heads
    if settings.get("kv_channels") is not None:
        says["head_dim"] = settings["kv_channels"]
    if settings.get("activation_func") is not None:
        says["hidden_act"] = activation(settings["activation_func"])
    if "window_size" in settings:  # another value than none is refused above
        says["sliding_window"] = None
    return says | _positions(stated)


def _positions(stated: MegatronConfig) -> dict[str, Any]:
    """The scaling of positions in config.json's terms; empty where no kind of them is stated."""
    settings = stated.settings
    kind = settings.get("position_embedding_type")
    if kind is None:
        return {}
    if kind == "yarn":
        values = {ours: settings.get(theirs) for theirs, ours in _YARN.items()}
        return {"rope_type": "yarn"} | {k: v for k, v in values.items() if v is not None}
    if kind != "rope":
        return {"rope_type": kind}
    share = {"partial_rotary_factor": settings.get("rotary_percent", 1.0)}
    linear = settings.get("seq_len_interpolation_factor")
    llama3 = settings.get("scale_positional_embedding") or "scale_factor" in settings
    if linear and llama3:
        refuse("stated.two-rope-scalings", f"{stated.path} scales positions in two ways", _NAME_IT)
    if linear:
        return share | {"rope_type": "linear", "factor": linear}
    if not llama3:
        return share | {"rope_type": "default"}
    numbers = {
        key: default if (value := settings.get(name)) is None else value
        for key, (name, default) in _LLAMA3_SCALING.items()
    }
    return share | {"rope_type": "llama3", **numbers}


def _of_hugging_face(config: PreTrainedConfig) -> Mapping[str, Any]:
    """Return the same fields of config.json, with the defaults of its family."""
    has: dict[str, Any] = {name: getattr(config, name, None) for name in (*_SAME, *NOT_IN_SHAPES)}
    has["num_key_value_heads"] = has["num_key_value_heads"] or has["num_attention_heads"]
    has["head_dim"] = has["head_dim"] or has["hidden_size"] // has["num_attention_heads"]
    has["hidden_act"] = activation(has["hidden_act"])
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ["sliding_attention"]):
        has["sliding_window"] = None
    positions = getattr(config, "rope_parameters", None) or {}
    return has | {"rope_type": "default"} | _DEFAULTS | dict(positions)


# --- Megatron-Bridge ------------------------------------------------------------------------------

_SCRIPT = Path(__file__).with_name("bridge_script.py")
#: Those of a job of several processes, in which a conversion may run, too.
_OF_A_JOB = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_LINES_SHOWN = 12


def run_bridge(action: Literal["import", "export"], *folders: Path) -> Mapping[str, str]:
    """Run bridge_script.py, and return the versions of its packages. Raises `EquipoiseError`.

    `import` takes a model of Hugging Face's and the destination; `export` an `iter_N`, a folder
    with config.json and the destination.
    """
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
    versions: Mapping[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions
