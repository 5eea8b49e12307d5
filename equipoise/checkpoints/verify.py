"""Whether the result of a conversion is the model that config.json describes.

transformers renames tensors while it loads them, and fuses those of experts; saving reverts that. A
source may have either names: a model folder those on the disk, a trainer's checkpoint those that
the model has in memory. What is written has the names of `save_pretrained`.
"""

import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)

from equipoise.checkpoints.hugging_face import model_tensors
from equipoise.checkpoints.tensors import (
    LazyTensor,
    Tensors,
    in_blocks,
    in_bytes,
    refuse,
    size,
    total_bytes,
)
from equipoise.files.pretrained import LOADING_ERRORS, SETTINGS_ERRORS, load_config

_MOST_NAMED = 3
#: Characters of a library's reason.
_MOST_SHOWN = 300
#: Prompts of these shapes go through a model that fits into memory.
_PROMPTS, _LENGTH = 2, 16
#: A float32 merge differs by rounding alone; the others in their numbers' last bit.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
#: What loading takes beside the weights, which it holds in the file's mapping and of its own.
_LOADING_BYTES = 5 * 10**8
_CGROUPS = Path("/sys/fs/cgroup")


# --- The tensors that config.json asks for --------------------------------------------------------


class ModelNames:
    """The names of a model's tensors, in memory and on the disk. The model has no weights."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.state: Mapping[str, torch.Tensor] = model.state_dict()
        #: Name -> name of the tensor that it is tied to, both in memory.
        self.tied = dict(model.all_tied_weights_keys) if model.config.tie_word_embeddings else {}
        #: Name on the disk -> form.
        self.saved = self.on_disk({n: t for n, t in self.state.items() if n not in self.tied})
        conversions = get_model_conversion_mapping(model)
        self._renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
        self._unfusing = [
            c.reverse_transform() for c in conversions if isinstance(c, WeightConverter)
        ]
        self._last_unfused = lru_cache(maxsize=1)(self._unfused)  # the parts follow one another

    def on_disk(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return tensors of the state as `save_pretrained` writes them."""
        saved: dict[str, torch.Tensor] = revert_weight_conversion(self.model, dict(state))
        return saved

    def in_memory(self, name: str) -> str:
        """Return the name in memory of a tensor on the disk that is not fused."""
        renamed: str = rename_source_key(name, self._renamings, [])[0]
        return renamed

    def lazily_on_disk(self, name: str, tensor: LazyTensor) -> dict[str, LazyTensor]:
        """Return one tensor in memory as what `save_pretrained` writes of it."""
        form = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        saved = self.on_disk({name: form})
        if rename_source_key(name, [], self._unfusing)[1] is None:
            return dict.fromkeys(saved, tensor)
        return {
            part: LazyTensor(tuple(form.shape), form.dtype, partial(self._part, name, tensor, part))
            for part, form in saved.items()
        }

    def _part(self, name: str, tensor: LazyTensor, part: str) -> torch.Tensor:
        return self._last_unfused(name, tensor)[part]

    def _unfused(self, name: str, tensor: LazyTensor) -> dict[str, torch.Tensor]:
        return self.on_disk({name: tensor.read()})


def names_of(folder: Path, tensors: Tensors) -> ModelNames:
    """Make the model of config.json on the device meta."""
    config, path = load_config(str(folder)), folder / "config.json"
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > len(tensors):
        refuse(
            "verify.missing-layers",
            f"{path} has num_hidden_layers {layers:,}, and the checkpoint {len(tensors):,} tensors",
        )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return ModelNames(model)
    except SETTINGS_ERRORS as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        refuse(
            "verify.impossible-config",
            f"{path}: no model can be made of it: {reason[:_MOST_SHOWN]}",
        )


def tensors_of_model(tensors: Tensors, folder: Path) -> Tensors:
    """Return the tensors by the names that `save_pretrained` writes, without copies of tied ones.

    Raises `EquipoiseError` unless they are all that transformers loads for config.json, in its
    shapes, and no others.
    """
    path, names = folder / "config.json", names_of(folder, tensors)
    weights: dict[str, LazyTensor] = {}
    copies: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        in_memory = names.in_memory(name)
        if name in names.saved:
            weights[name] = tensor
        elif in_memory in names.tied:
            copies[in_memory] = tensor
        elif in_memory in names.state:
            weights |= names.lazily_on_disk(in_memory, tensor)
        else:
            weights[name] = tensor
    _refuse_other_names(path, names, weights)
    for name, form in names.saved.items():
        if weights[name].shape != tuple(form.shape):
            refuse(
                "verify.other-shape",
                f"{name} is {weights[name].shape}, and config.json makes it {tuple(form.shape)}",
                "Name the model that training began with: --base. In a checkpoint of several "
                "ranks, a file of the last rank may be missing.",
            )
    for name, copy in copies.items():
        original = names.tied[name]
        saved = next(iter(names.on_disk({original: names.state[original]})))
        if not _equal(name, copy, weights[saved]):
            refuse(
                "verify.untied-copy",
                f"{path} ties {name} to {saved}, and the checkpoint holds two different tensors",
                "transformers does not tie these: write tie_word_embeddings: false into a copy of "
                "its config.json.",
            )
    return weights


def in_memory(tensors: Tensors, folder: Path) -> tuple[Tensors, Tensors]:
    """Return a model's tensors by their names in memory, and those that it fuses by their own."""
    names = names_of(folder, tensors)
    renamed = {
        names.in_memory(name): tensor for name, tensor in tensors_of_model(tensors, folder).items()
    }
    state = {name: tensor for name, tensor in renamed.items() if name in names.state}
    return state, {name: tensor for name, tensor in renamed.items() if name not in state}


def _refuse_other_names(path: Path, names: ModelNames, weights: Tensors) -> None:
    missing = [name for name in names.saved if name not in weights]
    extra = [name for name in weights if name not in names.saved]
    if missing:
        family = names.model.config.model_type
        refuse(
            "verify.missing-tensors",
            f"the checkpoint lacks {_named(missing)}, which {path} asks for",
            f"It holds {_named(extra)}: a {family} under such names is not read here."
            if extra
            else "",
        )
    if extra:
        refuse("verify.extra-tensors", f"the checkpoint holds {_named(extra)}, which no {path} has")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _equal(name: str, first: LazyTensor, second: LazyTensor) -> bool:
    """Compare two tensors block by block."""
    return (first.shape, first.dtype) == (second.shape, second.dtype) and all(
        torch.equal(in_bytes(a), in_bytes(b))
        for a, b in zip(in_blocks(name, first), in_blocks(name, second), strict=True)
    )


# --- The result -----------------------------------------------------------------------------------


def of_dtype(tensors: Tensors) -> torch.dtype:
    """The number format that most of the weights have."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=lambda dtype: sizes[dtype])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checks made, and those left out.

    `logits` is the largest difference from those of the source (an adapter's with its base), as a
    share of the largest logit; None where there is nothing to compare with. `unchecked` has a
    sentence for everything that was left out, with the reason.
    """

    tensors: int
    bytes: int
    loads: bool
    logits: float | None
    unchecked: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.tensors:,} tensors, {size(self.bytes)}"]
        if self.loads:
            parts.append("loads and answers")
        if self.logits is not None:
            parts.append(f"logits within {self.logits:.1g} of the source's")
        return "; ".join([*parts, *(f"not checked: {item}" for item in self.unchecked)])


def verify_beside(folder: Path) -> tuple[str, ...]:
    """Load what a folder holds beside its weights; tell what was not checked, and why."""
    try:
        if (folder / "generation_config.json").is_file():
            GenerationConfig.from_pretrained(folder)
        if not (folder / "tokenizer_config.json").is_file():
            return ("the tokenizer, because tokenizer_config.json is missing",)
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except ImportError as error:
        return (f"the tokenizer, which needs another package: {error}",)
    except Exception as error:  # noqa: BLE001  tokenizers raises no kind of its own
        refuse(
            "verify.unloadable-companion", f"what lies beside the weights does not load: {error}"
        )
    return ()


def verify_model(
    folder: Path,
    reference: Callable[[torch.dtype], torch.Tensor] | None,
    unchecked: tuple[str, ...],
) -> Verdict:
    """Let the model answer, where it fits into memory, and compare its logits with a reference.

    `reference` computes them from the source, in a dtype; `unchecked` names what else was left out.
    """
    written = model_tensors(folder)
    # The weights twice, for they are copied out of a mapping.
    needed = 2 * total_bytes(written) + _LOADING_BYTES
    free = free_memory()
    if needed > free:
        reason = f"whether it loads: that takes {size(needed)} of memory, and {size(free)} are free"
        return Verdict(len(written), total_bytes(written), False, None, (*unchecked, reason))
    dtype = of_dtype(written)
    expected = reference(dtype) if reference else None
    logits = logits_of(load_whole(folder, dtype))
    if not bool(logits.isfinite().all()):
        refuse("verify.infinite-logits", f"{folder}: the model's logits are not finite")
    off = None if expected is None else difference(logits, expected)
    return Verdict(len(written), total_bytes(written), True, off, unchecked)


def load_whole(folder: Path, dtype: torch.dtype) -> Any:
    try:
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    except LOADING_ERRORS as error:
        refuse("verify.unloadable-model", f"{folder}: from_pretrained does not load it: {error}")
    if names := [name for kind in loading_info.values() for name in kind]:
        refuse(
            "verify.loading-trouble",
            f"{folder}: from_pretrained has trouble with {names[0]} ({len(names)} such)",
        )
    return model


def logits_of_folder(folder: Path, dtype: torch.dtype) -> torch.Tensor:
    """Return the logits of a model as transformers itself loads it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=False)
    return logits_of(model)


def difference(logits: torch.Tensor, expected: torch.Tensor, remedy: str = "") -> float:
    """Return the largest difference as a share of the largest logit; refuse more than rounding."""
    expected, dtype = expected.float(), logits.dtype
    share = float((logits.float() - expected).abs().max() / expected.abs().max())
    if not share <= _TOLERANCE.get(dtype, 0.0):  # NaN is not
        refuse(
            "verify.other-logits",
            f"the result is not the source: logits are {share:.2g} off",
            remedy,
        )
    return share


def logits_of(model: Any) -> torch.Tensor:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(_PROMPTS * _LENGTH).reshape(_PROMPTS, _LENGTH) * 7 % vocabulary
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(ids).logits
    return logits


def free_memory() -> int:
    """Free bytes for this process: of the machine, its control groups and its limits."""
    memory = psutil.Process().memory_info()
    room = [psutil.virtual_memory().available, *_rooms_of_groups()]
    for limit, usage in ((resource.RLIMIT_DATA, memory.data), (resource.RLIMIT_AS, memory.vms)):
        soft = resource.getrlimit(limit)[0]
        room += [soft - usage] if soft != resource.RLIM_INFINITY else []
    return max(0, min(room))


def _rooms_of_groups() -> Iterator[int]:
    """Yield what control groups (version 2) leave this process; Slurm and containers set them."""
    cgroup_file = Path("/proc/self/cgroup")
    lines = cgroup_file.read_text().splitlines() if cgroup_file.is_file() else []
    for path in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        for group in (_CGROUPS / path, *(_CGROUPS / path).parents):
            limit, statistics = group / "memory.max", group / "memory.stat"
            if limit.is_file() and (text := limit.read_text().strip()) != "max":
                # Files in the cache count as used, and are dropped for what needs the room.
                stat = dict(line.split() for line in statistics.read_text().splitlines())
                yield int(text) - int(stat["anon"]) - int(stat["shmem"])
