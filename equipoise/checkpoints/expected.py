"""Tensors that config.json asks for, found without making any weights."""

from collections.abc import Mapping, Set
from pathlib import Path

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from equipoise.checkpoints.tensors import Tensors, refuse
from equipoise.errors import EquipoiseError
from equipoise.models.pretrained import SETTINGS_ERRORS, load_config

_MOST_NAMED = 3
#: Characters of a library's reason.
_MOST_SHOWN = 300


def tensors_of_model(tensors: Tensors, folder: Path) -> Tensors:
    """Return those that transformers loads for config.json, without second names of tied weights.

    Raises `ConversionError` unless they are all that it loads, in its shapes, and no others.
    """
    path = folder / "config.json"
    shapes, tied = _expected(folder)
    weights = {name: tensor for name, tensor in tensors.items() if name not in tied}
    if missing := [name for name in shapes if name not in weights]:
        refuse(f"the checkpoint lacks {_named(missing)}, which {path} asks for")
    if extra := [name for name in weights if name not in shapes]:
        refuse(f"the checkpoint holds {_named(extra)}, which no {path} has")
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            refuse(
                f"{name} is {weights[name].shape}, and config.json makes it {shape}",
                "Name the model that training began with: --base. In a checkpoint of several "
                "ranks, a file of the last rank may be missing.",
            )
    return weights


def _expected(folder: Path) -> tuple[Mapping[str, tuple[int, ...]], Set[str]]:
    """Name -> shape of every tensor of the model, and the names that are tied to one of these."""
    config = model_config(folder)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except SETTINGS_ERRORS as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        refuse(f"{folder / 'config.json'}: no model can be made of it: {reason[:_MOST_SHOWN]}")
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    state = model.state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if name not in tied}, tied


def model_config(folder: Path) -> PreTrainedConfig:
    """Read config.json, with the defaults of its family. Raises `ConversionError`."""
    try:
        return load_config(str(folder))
    except EquipoiseError as error:
        refuse(f"{folder / 'config.json'}: no model can be made of it: {error.message}")


def architecture(folder: Path) -> str:
    """The class that transformers makes of config.json, by which others know the model."""
    config = model_config(folder)
    return str(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def of_dtype(tensors: Tensors) -> torch.dtype:
    """The number format that most of the weights have."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=lambda dtype: sizes[dtype])
