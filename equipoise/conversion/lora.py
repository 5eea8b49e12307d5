"""LoRA adapters, and what they make of their base: W + scale * B A, in float32 and then cast."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from data_prep.files import read_json
from equipoise.conversion.hugging_face import file_tensors
from equipoise.conversion.megatron import LINEAR, Shape, prefix_of
from equipoise.conversion.tensors import LazyTensor, Tensors, refuse

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PART = re.compile(r"\.(lora_A|lora_B)\.(?:default\.)?weight$")
_SAVED = re.compile(r"\.modules_to_save\.(?:default\.)?")
_EMBEDDINGS, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
#: Keys of adapter_config.json with another form of adapter, which W + scale * B A is not.
_OTHER_FORMS = ("use_dora", "use_qalora", "fan_in_fan_out", "lora_bias", "alora_invocation_tokens")


@dataclass(frozen=True, slots=True)
class Pair:
    """The two factors for one weight: `a` [r, in], `b` [out, r]."""

    a: LazyTensor
    b: LazyTensor
    scale: float

    def difference(self) -> torch.Tensor:
        """What is added to the weight, in float32, [out, in]."""
        return self.scale * (self.b.read().float() @ self.a.read().float())

    def is_nothing(self) -> bool:
        """Whether a factor is zero throughout, as B is before training."""
        return not (self.b.read().any() and self.a.read().any())


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter by Hugging Face's names of the weights that it changes or replaces."""

    pairs: Mapping[str, Pair]
    replaced: Tensors = field(default_factory=dict)
    base: str | None = None


def is_adapter(folder: Path) -> bool:
    """Whether this is an adapter of PEFT's."""
    return (folder / CONFIG).is_file()


def peft_adapter(folder: Path) -> Adapter:
    """The adapter of a folder of PEFT's. Raises `ConversionError` for a form that is not LoRA."""
    config = read_json(folder / CONFIG)
    _refuse_other_forms(folder, config)
    factors: dict[str, dict[str, LazyTensor]] = {}
    replaced: dict[str, LazyTensor] = {}
    for name, tensor in file_tensors(folder / WEIGHTS).items():
        own = name.removeprefix(_PREFIX)
        if match := _PART.search(own):
            factors.setdefault(own[: match.start()], {})[match[1]] = tensor
        elif "lora_" in own:
            refuse(f"{folder / WEIGHTS} holds {name}, an adapter of embeddings or of another form")
        else:
            replaced[_SAVED.sub(".", own)] = tensor
    pairs = {f"{n}.weight": _pair(folder, n, parts, config) for n, parts in factors.items()}
    return Adapter(pairs, replaced, config.get("base_model_name_or_path") or None)


def _refuse_other_forms(folder: Path, config: Mapping[str, Any]) -> None:
    if (kind := config.get("peft_type")) != "LORA":
        refuse(f"{folder / CONFIG}: peft_type is {kind}; what is merged here is LORA")
    if other := next((key for key in _OTHER_FORMS if config.get(key)), None):
        refuse(f"{folder / CONFIG} has {other}, which is more than W + scale * B A")
    if (bias := config.get("bias", "none")) != "none":
        refuse(f"{folder / CONFIG}: bias is {bias}; an adapter of weights alone can be merged")


def _pair(
    folder: Path, name: str, parts: Mapping[str, LazyTensor], config: Mapping[str, Any]
) -> Pair:
    if parts.keys() != {"lora_A", "lora_B"}:
        refuse(f"{folder / WEIGHTS}: {name} has {' and '.join(parts)} alone")
    a, b = parts["lora_A"], parts["lora_B"]
    rank = int(_of_module(config.get("rank_pattern"), name, config["r"]))
    if a.shape[0] != rank or b.shape[1] != rank:
        ranks = f"{a.shape[0]} and {b.shape[1]}"
        refuse(f"{folder / WEIGHTS}: {name} has rank {ranks}, and {CONFIG} says {rank}")
    alpha = _of_module(config.get("alpha_pattern"), name, config["lora_alpha"])
    return Pair(a, b, alpha / (sqrt(rank) if config.get("use_rslora") else rank))


def _of_module(patterns: Mapping[str, float] | None, name: str, otherwise: float) -> float:
    """PEFT's rule: the first pattern that ends the module's name."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            return value
    return otherwise


def megatron_adapter(
    tensors: Tensors, peft: Mapping[str, Any], config: Mapping[str, Any]
) -> Adapter:
    """Megatron's adapters by Hugging Face's names.

    `tensors` are one for each layer, `peft` is that section of run_config.yaml, `config` is
    config.json. Q, K and V share A where their maps are one, as do gate and up.
    """
    shape, prefix = Shape.of(config), prefix_of(tensors)
    pairs = {}
    scale = float(peft["alpha"]) / float(peft["dim"])
    for number in range(shape.layers):
        for name, (other, cut) in LINEAR.items():
            theirs = f"{prefix}decoder.layers.{number}.{other}.adapter"
            if a := tensors.get(f"{theirs}.linear_in.weight"):
                b = cut(shape, tensors[f"{theirs}.linear_out.weight"])
                pairs[f"model.layers.{number}.{name}.weight"] = Pair(a, b, scale)
    return Adapter(pairs)


def peft_files(adapter: Adapter, base: str) -> tuple[dict[str, Any], Tensors]:
    """adapter_config.json and the tensors of adapter_model.safetensors, as PEFT loads them.

    Raises `ConversionError` where the weights do not share one rank and one scale.
    """
    kinds = {(pair.a.shape[0], pair.scale) for pair in adapter.pairs.values()}
    if len(kinds) != 1:
        refuse("the adapter has several ranks or scales", "Merge it into its base instead.")
    rank, scale = kinds.pop()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-2] for name in adapter.pairs}),
        "inference_mode": True,
    }
    tensors: dict[str, LazyTensor] = {}
    for name, pair in adapter.pairs.items():
        module = _PREFIX + name.removesuffix(".weight")
        tensors |= {f"{module}.lora_A.weight": pair.a, f"{module}.lora_B.weight": pair.b}
    return config, tensors


def merge(base: Tensors, adapter: Adapter) -> Tensors:
    """The base with the adapter in it. Raises `ConversionError` where the two do not fit."""
    refuse_nothing(adapter)
    for name, pair in adapter.pairs.items():
        _refuse_other_base(base, name, (pair.b.shape[0], pair.a.shape[1]))
    for name, tensor in adapter.replaced.items():
        _refuse_other_base(base, name, tensor.shape)
    if _EMBEDDINGS in adapter.replaced and _OUTPUT not in base:
        refuse(
            f"the adapter replaces {_EMBEDDINGS}, which is the output layer, too, in its base",
            "PEFT gives the output layer the old weights; such an adapter has no one model.",
        )
    merged = {**base, **adapter.replaced}
    return merged | {name: _merged(merged[name], pair) for name, pair in adapter.pairs.items()}


def refuse_nothing(adapter: Adapter) -> None:
    """Refuse an adapter that changes nothing: what it makes is the base under another name."""
    if not adapter.replaced and all(pair.is_nothing() for pair in adapter.pairs.values()):
        refuse("the adapter changes nothing: all its B or A are zero", "Was it trained and saved?")


def _refuse_other_base(base: Tensors, name: str, shape: tuple[int, ...]) -> None:
    if name not in base:
        refuse(
            f"the adapter changes {name}, which its base has not",
            "Name the base that it was trained on with --base. Tied embeddings are one weight, "
            "which an adapter of the output layer alone would tear apart.",
        )
    if base[name].shape != shape:
        refuse(
            f"the adapter's {name} is {shape}, and that of its base {base[name].shape}",
            "Name the base that it was trained on with --base.",
        )


def _merged(weight: LazyTensor, pair: Pair) -> LazyTensor:
    def read() -> torch.Tensor:
        return (weight.read().float() + pair.difference()).to(weight.dtype)

    def take(index: int | slice) -> LazyTensor:
        return _merged(weight[index], replace(pair, b=pair.b[index]))

    return LazyTensor(weight.shape, weight.dtype, read, take)
