"""Shapes of models: read from a config.json, or listed.

A model that is not listed and has no config.json in a local folder is not known; nothing is
guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.files.disk import read_json
from equipoise.files.packaged_models import SMOLLM2

#: Families whose layers `ModelShape` describes -> (biases of q, k and v; norms of q and k).
FAMILIES = {"llama": (False, False), "qwen2": (True, False), "qwen3": (False, True)}
#: What a config.json that is missing, damaged or another family's raises.
_NO_SHAPE = (OSError, ValueError, LookupError, TypeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder: grouped-query attention, a gated MLP, RMSNorm."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool = False  # the input embeddings are the output layer too
    qkv_bias: bool = False
    qk_norm: bool = False
    head_size: int = 128

    @property
    def _linear(self) -> list[tuple[int, int]]:
        """Input and output size of a layer's linear maps: q, k, v, o, gate, up, down."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = [(self.hidden, q), (self.hidden, kv), (self.hidden, kv), (q, self.hidden)]
        up = (self.hidden, self.intermediate)
        return [*attention, up, up, (self.intermediate, self.hidden)]

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, its two norms included."""
        attention = (self.heads + 2 * self.kv_heads) * self.head_size * self.qkv_bias
        norms = 2 * self.hidden + 2 * self.head_size * self.qk_norm
        return sum(a * b for a, b in self._linear) + attention + norms

    @property
    def parameters(self) -> int:
        """All of them, the last norm included."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    def lora_parameters(self, rank: int, *, fused: bool = False) -> int:
        """Parameters of a LoRA of every linear map of the layers: A is rank x in, B is out x rank.

        Hu et al. 2021, arXiv:2106.09685, section 4.1. Maps that are `fused` share one A: Megatron
        has one for q, k and v, and one for gate and up.
        """
        maps = self._linear
        if fused:
            q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
            attention = [(self.hidden, q + 2 * kv), (q, self.hidden)]
            mlp = [(self.hidden, 2 * self.intermediate), (self.intermediate, self.hidden)]
            maps = attention + mlp
        return self.layers * rank * sum(a + b for a, b in maps)


_SMALLEST_UNTIED = 3_584  # hidden size of the 7B


def _qwen(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, head_size: int = 128
) -> ModelShape:
    """A Qwen2.5; the small ones tie their embeddings and have a slightly smaller vocabulary."""
    small = hidden < _SMALLEST_UNTIED
    vocab = 151_936 if small else 152_064
    sizes = (layers, hidden, intermediate, heads, kv_heads, vocab)
    return ModelShape(*sizes, tied=small, qkv_bias=True, head_size=head_size)


_QWEN = {
    "0.5B": _qwen(24, 896, 4_864, 14, 2, head_size=64),
    "1.5B": _qwen(28, 1_536, 8_960, 12, 2),
    "3B": _qwen(36, 2_048, 11_008, 16, 2),
    "7B": _qwen(28, 3_584, 18_944, 28, 4),
    "14B": _qwen(48, 5_120, 13_824, 40, 8),
    "32B": _qwen(64, 5_120, 27_648, 40, 8),
    "72B": _qwen(80, 8_192, 29_568, 64, 8),
}
_LLAMA_1B = ModelShape(16, 2_048, 8_192, 32, 8, 128_256, tied=True, head_size=64)
_LLAMA_3B = ModelShape(28, 3_072, 8_192, 24, 8, 128_256, tied=True)
_LLAMA_8B = ModelShape(32, 4_096, 14_336, 32, 8, 128_256)
_LLAMA_70B = ModelShape(80, 8_192, 28_672, 64, 8, 128_256)
#: From each model's config.json on Hugging Face.
KNOWN_MODELS: Mapping[str, ModelShape] = {
    **{f"Qwen/Qwen2.5-{size}": shape for size, shape in _QWEN.items()},
    **{f"Qwen/Qwen2.5-{size}-Instruct": shape for size, shape in _QWEN.items()},
    SMOLLM2: ModelShape(30, 576, 1_536, 9, 3, 49_152, tied=True, head_size=64),
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA_1B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_70B,
}


def model_shape(name: str) -> ModelShape | None:
    """The shape of a known model or of a local folder's; None where it is not known."""
    if name in KNOWN_MODELS:
        return KNOWN_MODELS[name]
    try:
        return shape_of(read_json(Path(name) / "config.json"))
    except _NO_SHAPE:
        return None


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a config.json. Raises one of several errors where it is damaged or another's."""
    bias, norm = FAMILIES[config["model_type"]]
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelShape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        vocab=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        qk_norm=norm,
        head_size=int(config.get("head_dim") or hidden // heads),
    )
