"""The settings of a model that NeMo's or Megatron's checkpoints state, against config.json.

Shapes do not tell 8 heads from 16, or one base of the rotary embeddings from another, and a wrong
one loads without an error and gives another model. What a Llama, Qwen2 or Qwen3 of Hugging Face's
cannot do is refused by name.

NeMo 2 has its settings, Megatron-core's, in context/model.yaml, defaults included. io.json and
model.yaml name Python classes; both are read as data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from transformers import PreTrainedConfig

from equipoise.checkpoints.tensors import refuse, yaml_mapping

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


# --- Comparison with config.json ------------------------------------------------------------------

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

    Returns the fields that they state.
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
    if differences := _differences(says, has):
        refuse(
            "stated.config-overrides",
            "training changed the model by policy.hf_config_overrides, and "
            f"{named / 'config.json'} is without that: {differences}",
            "Write it into a copy of the model that training began with, and name that: --base. "
            "Where the weights have a config.json beside them, write it there.",
        )
    return frozenset(says)


def _differences(says: Mapping[str, Any], has: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name} is {value!r} there and {has.get(name)!r} here"
        for name, value in says.items()
        if value != has.get(name)
    )


def refuse_difference(
    stated: MegatronConfig, config: PreTrainedConfig, named: Path
) -> tuple[str, ...]:
    """Refuse a configuration, that of the folder `named`, which is not the one that was trained.

    Returns the fields that nothing states, which are thus the base's.
    """
    says = statements(stated)
    if differences := _differences(says, _of_hugging_face(config)):
        refuse(
            "stated.other-model",
            f"{stated.path} states another model than {named / 'config.json'}: {differences}",
            "Name the model that training began with: --base. If this is the one, write what was "
            "trained into a copy of its config.json.",
        )
    return tuple(name for name in NOT_IN_SHAPES if name not in says)


def statements(stated: MegatronConfig) -> dict[str, Any]:
    """Return what the settings say, by config.json's names.

    Raises `ConversionError` for what no config.json of a Llama, Qwen2 or Qwen3 can say.
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
    """How positions are scaled; without a kind of positions nothing is stated."""
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
