"""Safetensors: folders of Hugging Face's, read and written, and shards of DTensor's second form.

In the shards every rank has its part of each tensor. A rank's file is called
shard-<rank>-model-<n>-of-<of>, counted from 1, and its header says under DCP_SHARDING_INFO where in
each tensor its part begins.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from equipoise.checkpoints.tensors import (
    COPY_AGAIN,
    LazyTensor,
    Part,
    Tensors,
    file_tensor,
    in_blocks,
    in_bytes,
    join,
    refuse,
    total_bytes,
)
from equipoise.files.disk import write_json
from equipoise.files.untrusted import read_object

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
#: Beside the shards: the configuration, and which file a tensor was to go into.
SHARD_METADATA = ".hf_metadata"
_PLACES = "fqn_to_file_index_mapping.json"
_SHARD = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors$")
_OFFSETS = "DCP_SHARDING_INFO"


def is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(
        (folder / name).is_file() for name in (INDEX, _ONE_FILE)
    )


def model_tensors(folder: Path) -> Tensors:
    """The tensors of a model folder, of one file or of as many as its index names."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if not (folder / _ONE_FILE).is_file():
        refuse(
            "safetensors.no-weights",
            f"{folder} holds no safetensors",
            "Of pytorch_model.bin from_pretrained and save_pretrained of transformers make them.",
        )
    return file_tensors(folder / _ONE_FILE)


def _indexed(folder: Path) -> Tensors:
    places = read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        refuse("safetensors.empty-index", f"{folder / INDEX} names no file", "Make it again.")
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name:
            refuse(
                "safetensors.foreign-file",
                f"{folder / INDEX} names {name!r}, which is not a file of its folder",
            )
    files = {name: file_tensors(folder / name) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in files[name]:
            refuse(
                "safetensors.absent-tensor",
                f"{folder / name}: tensor {tensor} is missing, though {INDEX} lists it",
            )
    return {tensor: files[name][tensor] for tensor, name in places.items()}


def file_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file."""
    opened = _opened(path)
    result = {}
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    # The library makes sure that they lie one after another, and that the file ends with the last.
    for name in opened.offset_keys():
        part = opened.get_slice(name)
        shape, kind = tuple(part.get_shape()), part.get_dtype()
        if kind not in DTYPES:
            refuse(
                "safetensors.unknown-dtype",
                f"{path}: {name} has numbers of a kind that is not known here: {kind}",
            )
        form = torch.empty(shape, dtype=DTYPES[kind], device="meta")
        result[name] = file_tensor(path, start, form)
        start += form.nbytes
    return result


def _opened(path: Path) -> Any:
    """The file with its header read and checked; its tensors are not."""
    try:
        # For torch it would map all of the file as memory that may be written to.
        return safe_open(path, framework="numpy")
    except FileNotFoundError:
        refuse("safetensors.missing-file", f"{path} is missing", COPY_AGAIN)
    except (SafetensorError, OSError) as error:
        refuse(
            "safetensors.damaged-file",
            f"{path} is damaged or cut off: {error}",
            "Copy it again, or take an older one.",
        )


def copy_beside(source: Path, destination: Path) -> None:
    for name in _BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)


# --- Shards of ranks ------------------------------------------------------------------------------


def shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("shard-*") if _SHARD.match(path.name))


def sharded_tensors(folder: Path) -> Tensors:
    """The whole tensors.

    A last rank that is missing shows in the shapes alone, which are compared with the model's.
    """
    parts: dict[str, list[Part]] = {}
    for path in shards(folder):
        for name, part in _parts(path).items():
            parts.setdefault(name, []).append(part)
    places = folder / SHARD_METADATA / _PLACES
    listing = read_object(places) if places.is_file() else {}
    if missing := sorted(listing.keys() - parts.keys()):
        refuse(
            "safetensors.missing-part", f"{folder}: no file has a part of {missing[0]}", COPY_AGAIN
        )
    return {name: _joined(folder, name, pieces) for name, pieces in parts.items()}


def _parts(path: Path) -> Mapping[str, Part]:
    text = (_opened(path).metadata() or {}).get(_OFFSETS, "")
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, dict):
        refuse(
            "safetensors.no-offsets",
            f"{path} does not say under {_OFFSETS} which parts it holds",
            COPY_AGAIN,
        )
    parts = {}
    for name, tensor in file_tensors(path).items():
        entry = places.get(name)
        offsets = entry.get("saved_offsets") if isinstance(entry, dict) else None
        if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
            refuse(
                "safetensors.unplaced-part",
                f"{path} does not say which part of {name} it holds",
                COPY_AGAIN,
            )
        parts[name] = Part(tuple(offsets), tensor, path)
    return parts


def _joined(folder: Path, name: str, parts: list[Part]) -> LazyTensor:
    first = parts[0]
    for part in parts:
        if not len(part.offsets) == len(part.sizes) == len(first.sizes):
            refuse(
                "safetensors.other-dimensions",
                f"{part.path}: its part of {name} has other dimensions than its place",
            )
        if part.tensor.dtype != first.tensor.dtype:
            refuse(
                "safetensors.mixed-dtypes",
                f"{part.path}: {name} is {part.tensor.dtype}, and in {first.path} another",
            )
    ends = zip(*(part.slices for part in parts), strict=True)
    shape = tuple(max(end.stop for end in dimension) for dimension in ends)
    return join(folder, name, shape, first.tensor.dtype, parts)


# --- Writing --------------------------------------------------------------------------------------

#: Larger models are cut into files of about this size, as Hugging Face does.
SHARD_BYTES = 5 * 10**9
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_ALIGNMENT = 8

Progress = Callable[[int], None]


def write_model(folder: Path, tensors: Tensors, progress: Progress) -> None:
    """Write all tensors. `progress` is told how many bytes were written."""
    shards = list(_shards(tensors))
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, shard, progress)
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        metadata = {"total_size": total_bytes(tensors)}
        index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
        write_json(folder / INDEX, index)


def _shards(tensors: Tensors) -> Iterator[dict[str, LazyTensor]]:
    shard: dict[str, LazyTensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


def write_file(path: Path, tensors: Tensors, progress: Progress) -> None:
    """Write one file block by block; the library would need all tensors in memory.

    The format is a header in JSON, its length before it, and the bytes of the tensors after it
    (huggingface.co/docs/safetensors).
    """
    with path.open("xb", buffering=0) as file:
        file.write(_header(tensors))
        for name, tensor in tensors.items():
            for block in in_blocks(name, tensor):
                data = in_bytes(block).numpy().data
                written = 0
                while written < len(data):  # the system writes 2 GiB at once, at most
                    written += file.write(data[written:])
                progress(len(data))


def _header(tensors: Tensors) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        if tensor.dtype not in _KINDS:
            refuse(
                "writer.unknown-dtype",
                f"{name} has numbers of a kind that no model here has: {tensor.dtype}",
            )
        entries[name] = {
            "dtype": _KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
