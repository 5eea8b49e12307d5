"""The tensors that config.json asks for, by the names that `save_pretrained` writes.

transformers renames tensors while it loads them, and fuses those of experts; saving reverts that. A
source may have either names: a model folder those on the disk, a trainer's checkpoint those that
the model has in memory.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)

from equipoise.checkpoints.tensors import LazyTensor, Tensors, in_blocks, in_bytes, refuse
from equipoise.files.errors import EquipoiseError
from equipoise.models.pretrained import SETTINGS_ERRORS, load_config

_MOST_NAMED = 3
#: Characters of a library's reason.
_MOST_SHOWN = 300


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
    config, path = model_config(folder), folder / "config.json"
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

    Raises `ConversionError` unless they are all that transformers loads for config.json, in its
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
    known = {name: tensor for name, tensor in renamed.items() if name in names.state}
    return known, {name: tensor for name, tensor in renamed.items() if name not in known}


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


def model_config(folder: Path) -> PreTrainedConfig:
    """Read config.json, with the defaults of its family."""
    try:
        return load_config(str(folder))
    except EquipoiseError as error:
        refuse(
            "verify.refused-config",
            f"{folder / 'config.json'}: no model can be made of it: {error.message}",
        )


def architecture(folder: Path) -> str:
    """Return the class that transformers makes of config.json, by which others know the model."""
    config = model_config(folder)
    return str(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__)
