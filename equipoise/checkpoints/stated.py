"""NeMo 2's folders, and the settings of a model that NeMo's or Megatron's checkpoints state.

config.json is made of them, or compared with them: shapes do not tell 8 heads from 16, or one base
of the rotary embeddings from another, and a wrong one loads without an error and gives another
model. What a Llama, Qwen2 or Qwen3 of Hugging Face's cannot do is refused by name.

A folder of NeMo 2's has weights in torch_dist by Megatron's names, and configuration and tokenizer
beside them. Its settings are Megatron-core's (context/model.yaml, defaults included). io.json and
model.yaml name Python classes; both are read as data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig

from equipoise.checkpoints.dcp import torch_dist_tensors
from equipoise.checkpoints.hugging_face import copy_beside
from equipoise.checkpoints.tensors import Tensors, refuse, yaml_mapping
from equipoise.files.disk import write_json
from equipoise.models.pretrained import LOADING_ERRORS

Settings = Mapping[str, Any]
_TOO_MANY = 2**31
_NAME_IT = "Name the model that training began with, if its configuration says the same: --base."
#: Key -> the only value of a Llama, Qwen2 or Qwen3, also the default.
_ONLY: Mapping[str, object] = {
    "normalization": "rmsnorm",
    "activation_func": "silu",
    "gated_linear_unit": True,
    "position_embedding_type": "rope",
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

    @property
    def tied(self) -> bool:
        return bool(self.settings.get("share_embeddings_and_output_weights"))

    def number(self, key: str) -> int:
        """A whole number above zero."""
        value = self.settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _TOO_MANY:
            refuse(
                "stated.invalid-count",
                f"{self.path}: {key} is {short(value)}, and should be a count",
                _NAME_IT,
            )
        return value

    def count(self, key: str, otherwise: int = 1) -> int:
        """Read such a number from a key that may be missing or null."""
        return otherwise if self.settings.get(key) is None else self.number(key)

    def real(self, key: str, otherwise: float) -> float:
        """A finite number above zero, or `otherwise` for a key that is missing or null."""
        value = self.settings.get(key)
        value = otherwise if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(
                "stated.invalid-number",
                f"{self.path}: {key} is {short(value)}, and should be a number",
                _NAME_IT,
            )
        if not 0 < value < math.inf:
            refuse(
                "stated.number-below-zero",
                f"{self.path}: {key} is {short(value)}, and should be above zero",
                _NAME_IT,
            )
        return float(value)

    def padded(self, words: int) -> int:
        """The rows that NeMo makes of so many words."""
        multiple = self.count("make_vocab_size_divisible_by", 128)
        multiple *= self.count("tensor_model_parallel_size")
        return -(-words // multiple) * multiple

    def hugging_face(self, vocabulary: int) -> dict[str, Any]:
        """config.json of a model with so many words."""
        self.refuse_unknown_forms()
        biased, normed = (self.settings.get(k) for k in ("add_qkv_bias", "qk_layernorm"))
        if biased and normed:
            refuse(
                "stated.unknown-attention",
                f"{self.path}: add_qkv_bias with qk_layernorm is not a model known here",
                _NAME_IT,
            )
        family = "qwen2" if biased else "qwen3" if normed else "llama"
        config = {
            "architectures": [f"{family.capitalize()}ForCausalLM"],
            "model_type": family,
            "hidden_act": "silu",
            "hidden_size": self.number("hidden_size"),
            "intermediate_size": self.number("ffn_hidden_size"),
            "num_hidden_layers": self.number("num_layers"),
            "num_attention_heads": self.number("num_attention_heads"),
            "num_key_value_heads": self.groups(),
            "head_dim": self.head(),
            "max_position_embeddings": self.number("seq_length"),
            "rms_norm_eps": self.real("layernorm_epsilon", 1e-5),
            "rope_theta": self.real("rotary_base", 10_000),
            "tie_word_embeddings": self.tied,
            "vocab_size": vocabulary,
        }
        if scaling := self.rope_scaling():
            config["rope_scaling"] = scaling
        return config

    def groups(self) -> int:
        return self.count("num_query_groups", self.number("num_attention_heads"))

    def head(self) -> int:
        even = self.number("hidden_size") // self.number("num_attention_heads")
        return self.count("kv_channels", even)

    def rope_scaling(self) -> dict[str, Any] | None:
        """How positions are scaled, as config.json says it; None where they are not."""
        linear = self.settings.get("seq_len_interpolation_factor")
        llama3 = self.settings.get("scale_positional_embedding") or "scale_factor" in self.settings
        if linear and llama3:
            refuse(
                "stated.two-rope-scalings", f"{self.path} scales positions in two ways", _NAME_IT
            )
        if linear:
            return {"rope_type": "linear", "factor": self.real("seq_len_interpolation_factor", 1)}
        if not llama3:
            return None
        scaling: dict[str, Any] = {
            key: self.real(name, otherwise) for key, (name, otherwise) in _LLAMA3_SCALING.items()
        }
        length = "original_max_position_embeddings"
        return {"rope_type": "llama3", **scaling, length: int(scaling[length])}

    def refuse_unknown_forms(self, compared: Sequence[str] = ()) -> None:
        """Raise `ConversionError` for what no config.json says; not for what is `compared`."""
        for key, only in _ONLY.items():
            value = activation(self.settings.get(key))
            if key not in compared and value not in (only, None) and (value or only):
                refuse(
                    "stated.unknown-form",
                    f"{self.path}: {key} is {short(value)}; what is read here is {only}",
                    _NAME_IT,
                )


def activation(value: object) -> object:
    """A function by its name; words in lower case, anything else as it is."""
    if isinstance(value, Mapping) and "_target_" in value:
        value = str(value["_target_"]).rpartition(".")[2]
    value = value.lower() if isinstance(value, str) else value
    return "silu" if value == "swish" else value


def config_of_bridge(path: Path, document: Settings) -> MegatronConfig | None:
    """Return what run_config.yaml of Megatron-Bridge states of the model, if anything."""
    model = document.get("model")
    if not isinstance(model, Mapping):
        return None
    settings = dict(model)
    if settings.get("rope_scaling"):  # the other numbers of Llama 3 are constants of Megatron-core
        settings["scale_factor"] = settings.get("rope_scaling_factor")
    return MegatronConfig(path, settings)


def config_of_nemo(path: Path, document: Settings) -> MegatronConfig:
    """Return what model.yaml of NeMo 2 states of the model."""
    settings = document.get("config")
    if not isinstance(settings, Mapping):
        refuse("stated.no-config-section", f"{path} has no section config", _NAME_IT)
    return MegatronConfig(path, settings)


# --- NeMo 2 ---------------------------------------------------------------------------------------

_WORDS = "embedding.word_embeddings.weight"


@dataclass(frozen=True, slots=True)
class NemoFolder:
    """NeMo 2's weights, and its configuration with the folder that this is in."""

    tensors: Tensors
    config: MegatronConfig
    context: Path


def folders_of_nemo(path: Path) -> tuple[Path, Path] | None:
    """Return NeMo 2's weights and context, given the folder of both or that of the weights."""
    for weights, context in (path / "weights", path / "context"), (path, path.parent / "context"):
        if (weights / "metadata.json").is_file() and (context / "io.json").is_file():
            return weights, context
    return None


def open_nemo(weights: Path, context: Path) -> NemoFolder:
    """Open a folder of NeMo 2's."""
    path = context / "model.yaml"
    if not path.is_file():
        refuse(
            "nemo.unstated-default",
            f"{path} is missing, and io.json has no value that was a class's default",
            "Name the model that training began with: --base.",
        )
    tensors = torch_dist_tensors(weights)
    if any(".adapter." in name for name in tensors):
        refuse(
            "nemo.lora-adapter",
            f"{weights} holds a LoRA adapter of NeMo 2's, which is not read here",
            "Merge it with NeMo's own llm.peft.merge_lora first.",
        )
    return NemoFolder(tensors, config_of_nemo(path, yaml_mapping(path)), context)


def write_beside(nemo: NemoFolder, folder: Path) -> None:
    """Write config.json, the tokenizer and, where there is one, generation_config.json."""
    copy_beside(nemo.context / "nemo_tokenizer", folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (*LOADING_ERRORS, ImportError) as error:
        refuse(
            "nemo.unloadable-tokenizer",
            f"{nemo.context}: the tokenizer does not load: {' '.join(str(error).split())}",
            "Name a model with its tokenizer and configuration: --base.",
        )
    # NeMo fills the rows of the embeddings up to a multiple.
    rows = next((t.shape[0] for n, t in nemo.tensors.items() if n.endswith(_WORDS) and t.shape), 0)
    if not rows:
        refuse("nemo.no-embeddings", f"{nemo.context}: the checkpoint has no {_WORDS}")
    words = len(tokenizer) if nemo.config.padded(len(tokenizer)) == rows else rows
    config = nemo.config.hugging_face(nemo.config.count("vocab_size", words))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[name] = getattr(tokenizer, name)
    write_json(folder / "config.json", config)
    copy_beside(nemo.context / "artifacts", folder)  # generation_config.json


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


def _scaling(stated: MegatronConfig) -> dict[str, Any]:
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
