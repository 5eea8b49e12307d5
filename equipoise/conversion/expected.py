"""What a model must hold, from its configuration; no weights are made for it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from data_prep.files import read_json
from equipoise.conversion.tensors import Tensors, refuse
from equipoise.models.pretrained import LOADING_ERRORS

_MOST_NAMED = 3


def expected_shapes(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """Name -> shape of every tensor that transformers loads for the folder's config.json.

    A weight that is tied to another is not among them.
    """
    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except LOADING_ERRORS as error:
        refuse(f"{folder / 'config.json'}: no model can be made of it: {error}")
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    state = model.state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if name not in tied}


def refuse_other_tensors(tensors: Tensors, folder: Path) -> None:
    """Raise `ConversionError` unless these are all tensors of the folder's model, in its shapes."""
    expected = expected_shapes(folder)
    if missing := [name for name in expected if name not in tensors]:
        refuse(f"the checkpoint lacks {_named(missing)}, which {folder / 'config.json'} asks for")
    if extra := [name for name in tensors if name not in expected]:
        refuse(f"the checkpoint holds {_named(extra)}, which no {folder / 'config.json'} has")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            refuse(
                f"{name} is {tensors[name].shape}, and config.json makes it {shape}",
                "Name the model that training began with: --base. In a checkpoint of several "
                "ranks, a file of the last rank may be missing.",
            )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def without_tied(tensors: Tensors, folder: Path) -> Tensors:
    """Without the second name of a weight that config.json ties to another."""
    config = read_json(folder / "config.json")
    tied = "lm_head.weight" if config.get("tie_word_embeddings") else ""
    return {name: tensor for name, tensor in tensors.items() if name != tied}


def of_dtype(tensors: Tensors) -> torch.dtype:
    """The number format that most of the weights have."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=lambda dtype: sizes[dtype])
