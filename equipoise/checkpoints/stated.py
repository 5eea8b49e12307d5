"""Comparison of a checkpoint's stated settings with config.json.

Shapes do not tell 8 heads from 16, or one base of the rotary embeddings from another: with the
wrong ones every weight is right, and the model computes something else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from equipoise.checkpoints.nemo_config import NemoConfig, activation
from equipoise.checkpoints.tensors import refuse

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

#: Fields of config.json that change no forward pass of the model that is written.
_OF_TRAINING = frozenset(
    {"use_cache", "attn_implementation", "attention_dropout", "dtype", "torch_dtype"}
)


def refuse_overrides(
    overrides: Mapping[str, Any], config: PreTrainedConfig, named: Path
) -> frozenset[str]:
    """Refuse a configuration without what NeMo-RL's `policy.hf_config_overrides` made of it.

    Returns the fields that they state. Raises `ConversionError` with every field that differs.
    """
    says: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in ("rope_scaling", "rope_parameters"):
            scaling = value or {"rope_type": "default"}
            # `type` is its older name.
            says |= {"rope_type" if key == "type" else key: v for key, v in scaling.items()}
        elif name not in _OF_TRAINING:
            says[name] = value
    positions = getattr(config, "rope_parameters", None) or {}
    has = config.to_dict() | {"rope_type": "default"} | dict(positions)
    different = [name for name, value in says.items() if value != has.get(name)]
    if different:
        differences = "; ".join(
            f"{n} is {says[n]!r} there and {has.get(n)!r} here" for n in different
        )
        refuse(
            "training changed the model by policy.hf_config_overrides, and "
            f"{named / 'config.json'} is without that: {differences}",
            "Write it into a copy of the model that training began with, and name that: --base. "
            "Where the weights have a config.json beside them, write it there.",
        )
    return frozenset(says)


def refuse_difference(stated: NemoConfig, config: PreTrainedConfig, named: Path) -> tuple[str, ...]:
    """Refuse a configuration, that of the folder `named`, which is not the one that was trained.

    Returns the fields that nothing states, which are thus the base's. Raises `ConversionError`
    with every field that differs.
    """
    says, has = statements(stated), _of_hugging_face(config)
    different = [name for name, value in says.items() if value != has.get(name)]
    if different:
        differences = "; ".join(
            f"{n} is {says[n]!r} there and {has.get(n)!r} here" for n in different
        )
        refuse(
            f"{stated.path} states another model than {named / 'config.json'}: {differences}",
            "Name the model that training began with: --base. If this is the one, write what was "
            "trained into a copy of its config.json.",
        )
    return tuple(name for name in NOT_IN_SHAPES if name not in says)


def statements(stated: NemoConfig) -> dict[str, Any]:
    """Return what the settings say, by config.json's names.

    Raises `ConversionError` for what no config.json of a Llama, Qwen2 or Qwen3 can say.
    """
    settings = stated.settings
    stated.refuse_unknown_forms(compared=("activation_func", "position_embedding_type"))
    says = {n: settings[key] for n, key in _SAME.items() if settings.get(key) is not None}
    if "num_query_groups" in settings:
        says["num_key_value_heads"] = stated.groups()
    if "kv_channels" in settings:
        says["head_dim"] = stated.head()
    if settings.get("activation_func") is not None:
        says["hidden_act"] = activation(settings["activation_func"])
    if "window_size" in settings:  # another value than none is refused above
        says["sliding_window"] = None
    return says | _scaling(stated)


def _scaling(stated: NemoConfig) -> dict[str, Any]:
    """How positions are scaled; without a kind of positions nothing is stated."""
    settings = stated.settings
    kind = settings.get("position_embedding_type")
    if kind is None:
        return {}
    share = {"partial_rotary_factor": settings.get("rotary_percent", 1.0)}
    if kind == "yarn":
        values = {ours: settings.get(theirs) for theirs, ours in _YARN.items()}
        return {"rope_type": "yarn"} | {k: v for k, v in values.items() if v is not None}
    if kind != "rope":
        return {"rope_type": kind}
    return share | (stated.rope_scaling() or {"rope_type": "default"})


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
