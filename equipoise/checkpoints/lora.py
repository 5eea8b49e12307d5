"""LoRA adapters, and what they make of their base: W + scale * B A, in float32 and then cast."""

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from equipoise.checkpoints.hugging_face import file_tensors
from equipoise.checkpoints.megatron import LINEAR, Shape, prefix_of
from equipoise.checkpoints.tensors import (
    COPY_AGAIN,
    LazyTensor,
    Tensors,
    json_mapping,
    refuse,
    torch_file_tensors,
)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_PREFIX = "base_model.model."
_PART = re.compile(r"\.(lora_A|lora_B)\.(?:default\.)?weight$")
#: Where PEFT keeps a layer that it saves whole: one that is trained, and one below an adapter.
_SAVED = re.compile(r"\.(?:modules_to_save\.(?:default\.)?|base_layer\.)")
_EMBEDDINGS, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
#: Keys of adapter_config.json that leave W + scale * B A as it is, or are read here. With any other
#: one that is set, PEFT merges.
KEYS = frozenset(
    {
        *("peft_type", "task_type", "auto_mapping", "peft_version", "inference_mode"),
        *("base_model_name_or_path", "revision", "r", "lora_alpha", "use_rslora", "lora_dropout"),
        *("rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "bias"),
        *("modules_to_save", "layers_to_transform", "layers_pattern", "ensure_weight_tying"),
        *("init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
        *("qalora_group_size", "megatron_core", "velora_config", "runtime_config"),
    }
)
#: Beginnings of A and B that leave the base's own weights as they are; others take a part of them
#: into the adapter, which the weights on the disk then have twice.
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
#: For all patterns and all modules; those that PEFT writes take microseconds a module.
_PATTERN_SECONDS = 5
#: A sum is rounded once; in fewer bits than these the base is quantised.
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


_Targets = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two factors for one weight: `a` [r, in], `b` [out, r]."""

    a: LazyTensor
    b: LazyTensor
    scale: float

    def difference(self) -> torch.Tensor:
        """Return what is added to the weight, in float32, [out, in]."""
        return self.scale * (self.b.read().float() @ self.a.read().float())

    def is_nothing(self) -> bool:
        """Whether a factor is zero throughout, as B is before training."""
        return not (self.scale and self.b.read().any() and self.a.read().any())


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter by Hugging Face's names of the weights that it changes or replaces.

    `targets` says which of these linear maps the adapter was made to change.
    """

    pairs: Mapping[str, Pair]
    replaced: Tensors = field(default_factory=dict)
    targets: _Targets | None = None


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def adapter_config(folder: Path) -> Mapping[str, Any]:
    return json_mapping(folder / CONFIG)


def adapter_tensors(folder: Path) -> Tensors:
    """The tensors of an adapter by PEFT's names, of safetensors or of PyTorch's own file."""
    if not (folder / WEIGHTS).is_file() and (folder / _PICKLED).is_file():
        return torch_file_tensors(folder / _PICKLED)
    return file_tensors(folder / WEIGHTS)


def peft_adapter(folder: Path) -> Adapter:
    """Read a plain adapter of PEFT's."""
    config = adapter_config(folder)
    factors: dict[str, dict[str, LazyTensor]] = {}
    replaced: dict[str, LazyTensor] = {}
    for name, tensor in adapter_tensors(folder).items():
        key = name.removeprefix(_PREFIX)
        if match := _PART.search(key):
            factors.setdefault(key[: match.start()], {})[match[1]] = tensor
        else:
            replaced[_SAVED.sub(".", key)] = tensor
    with limited(folder):
        pairs = {f"{n}.weight": _pair(folder, n, parts, config) for n, parts in factors.items()}
    return Adapter(pairs, replaced, _targets(folder, config))


def is_plain(folder: Path) -> bool:
    """Tell whether an adapter of PEFT's is W + scale * B A alone, which is merged here."""
    config = adapter_config(folder)
    if (begun := config.get("init_lora_weights")) not in _BEGINNINGS:
        refuse(
            "lora.changed-base",
            f"{folder / CONFIG}: training began with init_lora_weights={begun}, which changes the "
            "base",
            "PEFT's save_pretrained makes a plain LoRA of it: path_initial_model_for_weight_"
            "conversion.",
        )
    return (
        config.get("peft_type") == "LORA"
        and config.get("bias", "none") == "none"
        and not any(value for key, value in config.items() if key not in KEYS)
        and all("lora_" not in name or _PART.search(name) for name in adapter_tensors(folder))
    )


def _pair(
    folder: Path, name: str, parts: Mapping[str, LazyTensor], config: Mapping[str, Any]
) -> Pair:
    if parts.keys() != {"lora_A", "lora_B"}:
        refuse("lora.missing-half", f"{folder}: {name} has {' and '.join(parts)} alone", COPY_AGAIN)
    a, b = parts["lora_A"], parts["lora_B"]
    rank = _of_module(folder, name, config, "rank_pattern", "r")
    _refuse_other_rank(folder, name, (a, b), rank)
    alpha = _of_module(folder, name, config, "alpha_pattern", "lora_alpha")
    return Pair(a, b, alpha / (sqrt(rank) if config.get("use_rslora") else rank))


def _refuse_other_rank(
    origin: Path, name: str, factors: tuple[LazyTensor, LazyTensor], rank: float
) -> None:
    a, b = factors
    if len(a.shape) != 2 or len(b.shape) != 2:
        refuse(
            "lora.no-matrices",
            f"{origin}: A and B of {name} are {a.shape} and {b.shape}, which are not matrices",
        )
    if a.shape[0] != rank or b.shape[1] != rank:
        ranks = f"{a.shape[0]} and {b.shape[1]}"
        refuse(
            "lora.other-rank",
            f"{origin}: {name} has rank {ranks}, and its configuration says {rank:g}",
        )


def _of_module(
    folder: Path, name: str, config: Mapping[str, Any], patterns: str, otherwise: str
) -> float:
    """PEFT's rule: the first pattern that ends the module's name."""
    try:
        values = [
            value
            for pattern, value in (config.get(patterns) or {}).items()
            if re.match(rf"(.*\.)?({pattern})$", name)
        ]
    except (re.error, AttributeError) as error:
        refuse("lora.invalid-pattern", f"{folder / CONFIG}: {patterns} cannot be read: {error}")
    return _positive(
        values[0] if values else config.get(otherwise), f"{folder / CONFIG}: {otherwise}"
    )


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        refuse("lora.invalid-scale", f"{where} is {value!r}, not a positive number", COPY_AGAIN)
    return value


@contextmanager
def limited(folder: Path, seconds: float | None = None) -> Iterator[None]:
    """Refuse patterns that take too long inside; Python's own engine may take for ever.

    It looks for signals while it matches, which reach the main thread alone. The time is this
    process's own, so that a busy machine does not count.
    """
    seconds = seconds or _PATTERN_SECONDS

    def stop(*_: object) -> NoReturn:
        refuse(
            "lora.slow-pattern",
            f"{folder / CONFIG}: its patterns of modules take longer than {seconds} s",
            "Write the names of the modules in place of the patterns.",
        )

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _targets(folder: Path, config: Mapping[str, Any]) -> _Targets | None:
    """PEFT's own rule of which modules a configuration names."""
    named = config.get("target_modules")
    if not named or named == "all-linear":
        return None
    from peft.tuners.tuners_utils import check_target_module_exists  # it takes seconds to import

    keys = ("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform")
    settings = SimpleNamespace(**{key: config.get(key) for key in (*keys, "layers_pattern")})

    def targets(names: Iterable[str]) -> list[str]:
        try:
            with limited(folder):
                return [name for name in names if check_target_module_exists(settings, name)]
        except (re.error, TypeError, ValueError, AttributeError) as error:
            refuse(
                "lora.unreadable-targets",
                f"{folder / CONFIG}: its names of modules cannot be read: {error}",
            )

    return targets


def megatron_adapter(
    tensors: Tensors, peft: Mapping[str, Any], config: Mapping[str, Any]
) -> Adapter:
    """Megatron's adapters by Hugging Face's names.

    `tensors` are one for each layer, `peft` is that section of run_config.yaml, `config` is
    config.json. Q, K and V share A where their maps are one, as do gate and up.
    """
    # Megatron-Bridge's LoRA alone: its DoRA has magnitudes, its CanonicalLoRA other names.
    kind = str(peft.get("_target_", "LoRA")).rpartition(".")[2]
    if kind != "LoRA":
        refuse(
            "lora.other-kind",
            f"run_config.yaml: the adapters are {kind}'s; what is merged here is LoRA's",
        )
    shape, prefix = Shape.of(config), prefix_of(tensors)
    pairs, read = {}, set()
    rank, alpha = (_positive(peft.get(key), f"run_config.yaml: {key}") for key in ("dim", "alpha"))
    for number in range(shape.layers):
        for name, (megatron_name, cut) in LINEAR.items():
            theirs = f"{prefix}decoder.layers.{number}.{megatron_name}.adapter"
            a, b = (tensors.get(f"{theirs}.linear_{end}.weight") for end in ("in", "out"))
            if a is None or b is None:
                continue
            read |= {f"{theirs}.linear_{end}.weight" for end in ("in", "out")}
            _refuse_other_rank(Path(theirs), name, (a, b), rank)
            pair = Pair(a, cut(shape, b), alpha / rank)
            pairs[f"model.layers.{number}.{name}.weight"] = pair
    # Transformer Engine keeps its state among the weights, which no merging needs.
    names = (n for n in tensors if ".adapter." in n and not n.endswith("_extra_state"))
    if extra := sorted(set(names) - read):
        refuse(
            "lora.unmapped-weight",
            f"the adapter holds {extra[0]}, for which there is no weight of Hugging Face's here",
        )
    return Adapter(pairs)


def peft_files(adapter: Adapter, base: str) -> tuple[dict[str, Any], Tensors]:
    """adapter_config.json and the tensors of adapter_model.safetensors, as PEFT loads them."""
    kinds = {(pair.a.shape[0], pair.scale) for pair in adapter.pairs.values()}
    if len(kinds) != 1:
        refuse(
            "lora.several-ranks",
            "the adapter has several ranks or scales",
            "Merge it into its base instead.",
        )
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


def merge(base: Tensors, adapter: Adapter, *, tied: bool = False) -> Tensors:
    """The base with the adapter in it; `tied`: its output layer is its embeddings."""
    tied = tied or _OUTPUT not in base
    if tied and _OUTPUT in adapter.pairs:
        refuse(
            "lora.tied-output",
            f"the adapter changes {_OUTPUT}, which its base has not: it is its embeddings",
            "A change of the output layer alone would tear them apart. Train without lm_head.",
        )
    replaced = _without_tied_copy(adapter.replaced, tied=tied)
    for name, pair in adapter.pairs.items():
        _refuse_other_base(base, name, (pair.b.shape[0], pair.a.shape[1]))
    for name, tensor in replaced.items():
        _refuse_other_base(base, name, tensor.shape)
    _refuse_missing_layers(base, adapter)
    _refuse_noop_merge(base, adapter.pairs, replaced)
    merged = {**base, **{name: cast(t, base[name].dtype) for name, t in replaced.items()}}
    return merged | {name: _merged(merged[name], pair) for name, pair in adapter.pairs.items()}


NOTHING = (
    "the adapter changes nothing: all its B or A are zero",
    "Was it trained, and saved after that?",
)


def refuse_nothing(adapter: Adapter) -> None:
    """Refuse an adapter that changes nothing: what it makes is the base under another name."""
    if not adapter.replaced and all(pair.is_nothing() for pair in adapter.pairs.values()):
        refuse("lora.noop-merge", *NOTHING)


def _refuse_noop_merge(base: Tensors, pairs: Mapping[str, Pair], replaced: Tensors) -> None:
    """Refuse what would leave the base as it is, and what would make it no model."""
    if all(pair.is_nothing() for pair in pairs.values()) and all(
        torch.equal(tensor.read(), base[name].read()) for name, tensor in replaced.items()
    ):
        refuse("lora.noop-merge", *NOTHING)
    for name, pair in pairs.items():
        if not all(bool(factor.read().isfinite().all()) for factor in (pair.a, pair.b)):
            refuse(
                "lora.infinite-factors",
                f"the adapter's factors of {name} are not finite",
                "Take an older checkpoint.",
            )
    for name, tensor in replaced.items():
        if not bool(tensor.read().isfinite().all()):
            refuse(
                "lora.infinite-weight",
                f"the adapter's {name} is not finite",
                "Take an older checkpoint.",
            )


def _without_tied_copy(replaced: Tensors, *, tied: bool) -> Tensors:
    """Drop the output layer, where it is the embeddings in the base and here."""
    if not tied or not replaced.keys() & {_EMBEDDINGS, _OUTPUT}:
        return replaced
    embeddings, output = replaced.get(_EMBEDDINGS), replaced.get(_OUTPUT)
    if embeddings is None or output is None or not torch.equal(embeddings.read(), output.read()):
        alone = _EMBEDDINGS if output is None else _OUTPUT
        refuse(
            "lora.tied-copy",
            f"the adapter replaces {alone}, which is the output layer, too, in its base",
            "PEFT leaves the other one as it was, so that no tied model is the trained one. Train "
            "with ensure_weight_tying=True.",
        )
    return {name: tensor for name, tensor in replaced.items() if name != _OUTPUT}


def _refuse_missing_layers(base: Tensors, adapter: Adapter) -> None:
    """Refuse an adapter that lacks layers: they would stay as they are in the base."""
    if not adapter.targets:
        return
    maps = [
        name.removesuffix(".weight")
        for name, tensor in base.items()
        if len(tensor.shape) == 2 and name.endswith(".weight") and name not in adapter.pairs
    ]
    if missing := adapter.targets(maps):
        refuse(
            "lora.missing-layer",
            f"the adapter has nothing for {missing[0]}.weight, which {CONFIG} says it changes",
        )


def refuse_quantised(base: Tensors) -> None:
    """Raise `ConversionError` for a base of fewer bits than a sum needs."""
    for name, tensor in base.items():
        if name.endswith((".weight", ".qweight")) and tensor.dtype not in _NUMBERS:
            refuse(
                "lora.quantised-base",
                f"{name.replace('.qweight', '.weight')} of the base is quantised",
                "Name the model that it was quantised from with --base: a sum in so few bits would "
                "round the adapter away.",
            )


def _refuse_other_base(base: Tensors, name: str, shape: tuple[int, ...]) -> None:
    named = "Name the base that it was trained on with --base."
    if name not in base:
        refuse("lora.absent-in-base", f"the adapter changes {name}, which its base has not", named)
    base_shape = base[name].shape
    if base_shape[1:] == shape[1:] and base_shape != shape and name in (_EMBEDDINGS, _OUTPUT):
        named = (
            f"If the vocabulary was resized for the training: save the base after "
            f"resize_token_embeddings({shape[0]}), and name it with --base."
        )
    if base_shape != shape:
        refuse(
            "lora.other-shape",
            f"the adapter's {name} is {shape}, and that of its base {base_shape}",
            named,
        )


def cast(tensor: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    """Return the tensor in another number format."""
    if tensor.dtype == dtype:
        return tensor
    return LazyTensor(tensor.shape, dtype, lambda: tensor.read().to(dtype))


def _merged(weight: LazyTensor, pair: Pair) -> LazyTensor:
    def read() -> torch.Tensor:
        return (weight.read().float() + pair.difference()).to(weight.dtype)

    def take(index: int | slice) -> LazyTensor:
        return _merged(weight[index], replace(pair, b=pair.b[index]))

    return LazyTensor(weight.shape, weight.dtype, read, take)
