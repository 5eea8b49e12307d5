"""Folders of Hugging Face's: their tensors, and the files beside them."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from equipoise.checkpoints.mapped import LOAD_ERRORS, file_tensor, saved, saved_tensor
from equipoise.checkpoints.settings import json_mapping
from equipoise.checkpoints.tensors import Tensors, refuse

INDEX = "model.safetensors.index.json"
_ONE_FILE = "model.safetensors"
#: What a model folder holds besides its weights: configuration, tokenizer, chat template.
_BESIDE = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("tokenizer.model", "chat_template.jinja", "chat_template.json"),
)
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def is_model(folder: Path) -> bool:
    """Whether this is a whole model of Hugging Face's."""
    return (folder / "config.json").is_file() and any(
        (folder / name).is_file() for name in (INDEX, _ONE_FILE, "pytorch_model.bin")
    )


def model_tensors(folder: Path) -> Tensors:
    """The tensors of a model folder, of one file or of as many as its index names."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / _ONE_FILE).is_file():
        return file_tensors(folder / _ONE_FILE)
    return pickled_tensors(folder / "pytorch_model.bin")


def _indexed(folder: Path) -> Tensors:
    places = json_mapping(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        refuse(f"{folder / INDEX} names no file", "Make it again.")
    paths = {_inside(folder, name) for name in places.values()}
    files = {path.name: file_tensors(path) for path in sorted(paths)}
    for tensor, name in places.items():
        if tensor not in files[name]:
            refuse(f"{folder / name}: there is no tensor {tensor}, which {INDEX} says it has")
    return {tensor: files[name][tensor] for tensor, name in places.items()}


def _inside(folder: Path, name: object) -> Path:
    """The file that an index names, which may not be outside its folder."""
    if not isinstance(name, str) or Path(name).name != name:
        refuse(f"{folder / INDEX} names {name!r}, which is no file of its folder")
    return folder / name


def pickled_tensors(path: Path) -> Tensors:
    """PyTorch's own file, of which nothing but tensors is read."""
    if not path.is_file():
        refuse(f"{path.parent} holds no weights")
    try:
        state = saved(path)
    except LOAD_ERRORS as error:
        refuse(f"{path} cannot be read: {error}", "Download or copy it again.")
    if not isinstance(state, dict):
        refuse(f"{path} holds no names of tensors")
    return {name: saved_tensor(name, form, path) for name, form in state.items()}


def file_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file. Raises `ConversionError` for one that is cut off."""
    opened = open_file(path)
    result = {}
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    # The library makes sure that they lie one after another, and that the file ends with the last.
    for name in opened.offset_keys():
        part = opened.get_slice(name)
        shape, kind = tuple(part.get_shape()), part.get_dtype()
        if kind not in DTYPES:
            refuse(f"{path}: {name} has numbers of a kind that is not known here: {kind}")
        form = torch.empty(shape, dtype=DTYPES[kind], device="meta")
        result[name] = file_tensor(path, start, form)
        start += form.nbytes
    return result


def open_file(path: Path) -> Any:
    """The file with its header read and checked; its tensors are not."""
    try:
        # For torch it would map all of the file as memory that may be written to.
        return safe_open(path, framework="numpy")
    except FileNotFoundError:
        refuse(f"{path} is missing", "Copy the checkpoint again, with all its files.")
    except (SafetensorError, OSError) as error:
        refuse(f"{path} is damaged or cut off: {error}", "Copy it again, or take an older one.")


def copy_beside(source: Path, destination: Path) -> None:
    """Copy configuration, tokenizer and chat template of one folder into another."""
    for name in _BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
