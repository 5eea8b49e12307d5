"""LoRA adapters, and what they make of their base: W + scale * B A, in float32 and then cast.

PEFT builds an adapter on a model without numbers: so its own rules say which tensors there should
be and by which scale each counts. A plain LoRA is then merged here, tensor by tensor; every other
kind is merged by PEFT, in memory.
"""

import dataclasses
import re
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import AutoModelForCausalLM

from equipoise.checkpoints.hugging_face import file_tensors, model_tensors
from equipoise.checkpoints.megatron import LINEAR, prefix_of, shape_of_model
from equipoise.checkpoints.tensors import LazyTensor, Tensors, refuse, size, total_bytes
from equipoise.checkpoints.verify import (
    difference,
    free_memory,
    load_whole,
    logits_of,
    names_of,
    tensors_of_model,
)
from equipoise.files.pretrained import SETTINGS_ERRORS
from equipoise.files.untrusted import read_object

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PART = re.compile(r"\.lora_[AB]\.weight$")
_OUTPUT = "lm_head.weight"
#: Beginnings of A and B that leave the base's own weights as they are; others take a part of them
#: into the adapter, which the weights on the disk then have twice.
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
#: For all patterns and all modules; those that PEFT writes take microseconds a module.
_PATTERN_SECONDS = 60
#: A sum is rounded once; in fewer bits than these the base is quantised.
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NOTHING = (
    "the adapter changes nothing: all its B or A are zero",
    "Was it trained, and saved after that?",
)


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


#: Name of the weight -> its factors.
Adapter = Mapping[str, Pair]


def adapter_config(folder: Path) -> Mapping[str, Any]:
    return read_object(folder / CONFIG)


def adapter_tensors(folder: Path) -> Tensors:
    return file_tensors(folder / WEIGHTS)


# --- Adapters of PEFT's ---------------------------------------------------------------------------


def peft_adapter(folder: Path, base: Path) -> Adapter | None:
    """Read an adapter of PEFT's that is W + scale * B A alone; None for another kind."""
    from peft.tuners.lora import LoraLayer  # it takes seconds to import
    from peft.tuners.lora.layer import Linear

    config, adapted = _without_numbers(folder, base)
    tensors = adapter_tensors(folder)
    modules = {
        name.removeprefix(_PREFIX): module
        for name, module in adapted.named_modules()
        if isinstance(module, LoraLayer)
    }
    is_plain = (
        getattr(config, "bias", None) == "none"
        and all(_PART.search(name) or ".base_layer." in name for name in tensors)
        and all(type(m) is Linear and not m.lora_variant for m in modules.values())
        and not any(m.fan_in_fan_out or any(m.lora_bias.values()) for m in modules.values())
    )
    if not is_plain:
        return None
    return {
        f"{name}.weight": Pair(
            tensors[f"{_PREFIX}{name}.lora_A.weight"],
            tensors[f"{_PREFIX}{name}.lora_B.weight"],
            module.scaling["default"],
        )
        for name, module in modules.items()
    }


def _without_numbers(folder: Path, base: Path) -> tuple[Any, Any]:
    """Build base and adapter without numbers, and compare the adapter's tensors with the file's.

    PEFT only warns of keys and tensors that it does not know or does not find.
    """
    import peft

    settings = adapter_config(folder)
    model = names_of(base, model_tensors(base)).model
    if (begun := settings.get("init_lora_weights")) not in _BEGINNINGS:
        refuse(
            "lora.changed-base",
            f"{folder / CONFIG}: training began with init_lora_weights={begun}, which changes the "
            "base",
            "PEFT's save_pretrained makes a plain LoRA of it: path_initial_model_for_weight_"
            "conversion.",
        )
    if settings.get("megatron_config"):  # its layers' module is imported by name
        refuse("lora.foreign-code", f"{folder / CONFIG}: megatron_config names code")
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        fields = {field.name for field in dataclasses.fields(config)}
        if extras := sorted(settings.keys() - fields):
            refuse(
                "lora.unknown-setting",
                f"{folder / CONFIG} has {extras[0]}, which PEFT {peft.__version__} does not know",
            )
        if hasattr(config, "init_lora_weights"):  # the file has the factors
            config.init_lora_weights = False
        with limited(folder), torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tied layers, which are looked at in the end
            adapted = peft.get_peft_model(model, config)
            forms = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    except (*SETTINGS_ERRORS, re.error) as error:
        _refuse_by_peft(folder, error)
    if not hasattr(adapted.base_model, "merge_and_unload"):
        refuse(
            "lora.unmergeable",
            f"{folder / CONFIG}: {settings.get('peft_type')} is not a change of weights, and "
            "cannot be merged",
            "Keep it an adapter: `equipoise convert SOURCE DEST --adapter`.",
        )
    tensors = adapter_tensors(folder)
    for name, form in forms.items():
        if name not in tensors or tensors[name].shape != tuple(form.shape):
            shape = tensors[name].shape if name in tensors else "missing"
            refuse(
                "lora.other-tensor",
                f"{folder}: {name} is {shape}, and {CONFIG} makes it {tuple(form.shape)}",
                "Name the base that it was trained on with --base. If its vocabulary was resized, "
                "save it after resize_token_embeddings.",
            )
    # PEFT saves the embeddings below an adapter of them, too.
    extra = [name for name in tensors if name not in forms and ".base_layer." not in name]
    if extra:
        refuse("lora.extra-tensor", f"{folder} holds {extra[0]}, of which {CONFIG} says nothing")
    return config, adapted


def merge_by_peft(
    folder: Path, base: Path, destination: Path
) -> tuple[dict[str, LazyTensor], torch.Tensor]:
    """Merge an adapter in float32; return the tensors, and the logits of base and adapter before.

    The tensors lie in `destination`, and are read in the base's number formats.
    """
    from peft import PeftConfig, PeftModel

    originals = tensors_of_model(model_tensors(base), base)
    numbers = sum(tensor.nbytes // tensor.dtype.itemsize for tensor in originals.values())
    # A base in float32, and what loading and merging hold beside it.
    needed = 8 * numbers + 2 * total_bytes(adapter_tensors(folder))
    if needed > (free := free_memory()):
        refuse(
            "lora.large-base",
            f"{folder} is merged by PEFT, which takes {size(needed)} of memory; {size(free)} are "
            "free",
            "Merge it on a larger machine. A plain LoRA is merged in little memory.",
        )
    model = load_whole(base, torch.float32)
    try:
        with warnings.catch_warnings():  # of tied layers, which the logits decide about
            warnings.simplefilter("ignore")
            config = PeftConfig.from_pretrained(str(folder))
            adapted = PeftModel.from_pretrained(model, str(folder), config=config)
            expected = logits_of(adapted)
            merged = adapted.merge_and_unload(safe_merge=True)
    except SETTINGS_ERRORS as error:
        _refuse_by_peft(folder, error)
    difference(
        logits_of(merged),
        expected,
        "Tied embeddings need ensure_weight_tying=True in training; other adapters that depend "
        "on the input cannot be merged.",
    )
    merged.save_pretrained(destination)
    tensors = model_tensors(destination)
    if all(
        name in originals and torch.equal(tensor.read(), originals[name].read().float())
        for name, tensor in tensors.items()
    ):
        refuse("lora.noop-merge", *_NOTHING)
    return {n: cast(t, originals[n].dtype) if n in originals else t for n, t in tensors.items()}, (
        expected
    )


def _refuse_by_peft(folder: Path, error: BaseException) -> NoReturn:
    reason = " ".join(str(error).split())[:300]
    refuse("lora.refused-by-peft", f"{folder}: PEFT does not merge it: {reason}")


@contextmanager
def limited(folder: Path) -> Iterator[None]:
    """Refuse patterns that take too long inside; Python's regex engine may never end.

    It looks for signals while it matches, which reach the main thread alone. The time is this
    process's own, so that a busy machine does not count.
    """

    def stop(*_: object) -> NoReturn:
        refuse(
            "lora.slow-pattern",
            f"{folder / CONFIG}: its patterns of modules take longer than {_PATTERN_SECONDS} s",
            "Write the names of the modules in place of the patterns.",
        )

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _PATTERN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- Adapters of Megatron's -----------------------------------------------------------------------


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
    shape, prefix = shape_of_model(config), prefix_of(tensors)
    pairs, read = {}, set()
    rank, alpha = (_positive(peft, key) for key in ("dim", "alpha"))
    for number in range(shape.layers):
        for name, (megatron_name, cut) in LINEAR.items():
            theirs = f"{prefix}decoder.layers.{number}.{megatron_name}.adapter"
            a, b = (tensors.get(f"{theirs}.linear_{end}.weight") for end in ("in", "out"))
            if a is None or b is None:
                continue
            read |= {f"{theirs}.linear_{end}.weight" for end in ("in", "out")}
            if a.shape[:1] != (rank,) or b.shape[1:] != (rank,):
                refuse(
                    "lora.other-rank",
                    f"{theirs}: A and B are {a.shape} and {b.shape}, and run_config.yaml says "
                    f"{rank:g}",
                )
            pairs[f"model.layers.{number}.{name}.weight"] = Pair(a, cut(shape, b), alpha / rank)
    # Transformer Engine keeps its state among the weights, which no merging needs.
    names = (n for n in tensors if ".adapter." in n and not n.endswith("_extra_state"))
    if extra := sorted(set(names) - read):
        refuse(
            "lora.unmapped-weight",
            f"the adapter holds {extra[0]}, which has no weight of Hugging Face's here",
        )
    return pairs


def _positive(settings: Mapping[str, Any], key: str) -> float:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        refuse("lora.invalid-scale", f"run_config.yaml: {key} is {value!r}, not a positive number")
    return value


def peft_files(adapter: Adapter, base: str) -> tuple[dict[str, Any], Tensors]:
    """adapter_config.json and the tensors of adapter_model.safetensors, as PEFT loads them."""
    rank, scale = next((pair.a.shape[0], pair.scale) for pair in adapter.values())
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-2] for name in adapter}),
        "inference_mode": True,
    }
    tensors: dict[str, LazyTensor] = {}
    for name, pair in adapter.items():
        module = _PREFIX + name.removesuffix(".weight")
        tensors |= {f"{module}.lora_A.weight": pair.a, f"{module}.lora_B.weight": pair.b}
    return config, tensors


# --- Merging, tensor by tensor --------------------------------------------------------------------


def merge(base: Tensors, adapter: Adapter, *, tied: bool = False) -> Tensors:
    """The base with the adapter in it; `tied`: its output layer is its embeddings."""
    if _OUTPUT in adapter and (tied or _OUTPUT not in base):
        refuse(
            "lora.tied-output",
            f"the adapter changes {_OUTPUT}, which its base has not: it is its embeddings",
            "A change of the output layer alone would tear them apart. Train without lm_head.",
        )
    for name, pair in adapter.items():
        shape = (pair.b.shape[0], pair.a.shape[1])
        if name not in base or base[name].shape != shape:
            shape_of_base = base[name].shape if name in base else "missing"
            refuse(
                "lora.other-shape",
                f"the adapter's {name} is {shape}, and that of its base {shape_of_base}",
                "Name the base that it was trained on with --base.",
            )
        if not all(bool(factor.read().isfinite().all()) for factor in (pair.a, pair.b)):
            refuse(
                "lora.infinite-factors",
                f"the adapter's factors of {name} are not finite",
                "Take an older checkpoint.",
            )
    if all(pair.is_nothing() for pair in adapter.values()):
        refuse("lora.noop-merge", *_NOTHING)
    return {**base, **{name: _merged(base[name], pair) for name, pair in adapter.items()}}


def refuse_quantised(base: Tensors) -> None:
    """Raise `EquipoiseError` for a base of fewer bits than a sum needs."""
    for name, tensor in base.items():
        if name.endswith((".weight", ".qweight")) and tensor.dtype not in _NUMBERS:
            refuse(
                "lora.quantised-base",
                f"{name.replace('.qweight', '.weight')} of the base is quantised",
                "Name the model that it was quantised from with --base: a sum in so few bits would "
                "round the adapter away.",
            )


def cast(tensor: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    if tensor.dtype == dtype:
        return tensor
    return LazyTensor(tensor.shape, dtype, lambda: tensor.read().to(dtype))


def _merged(weight: LazyTensor, pair: Pair) -> LazyTensor:
    def read() -> torch.Tensor:
        return (weight.read().float() + pair.difference()).to(weight.dtype)

    def take(index: int | slice) -> LazyTensor:
        return _merged(weight[index], replace(pair, b=pair.b[index]))

    return LazyTensor(weight.shape, weight.dtype, read, take)


def logits_with_adapter(base: Path, adapter: Adapter, dtype: torch.dtype) -> torch.Tensor:
    """Return the logits of a base with the adapter beside its linear maps."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, trust_remote_code=False)
    modules = dict(model.named_modules())
    for name, pair in adapter.items():
        modules[name.removesuffix(".weight")].register_forward_hook(partial(_beside, pair))
    return logits_of(model)


def _beside(
    pair: Pair, _: object, inputs: tuple[torch.Tensor], output: torch.Tensor
) -> torch.Tensor:
    """The output of a linear map with its adapter's added."""
    a, b = (factor.read().to(output.dtype) for factor in (pair.a, pair.b))
    return output + pair.scale * (inputs[0] @ a.T @ b.T)
