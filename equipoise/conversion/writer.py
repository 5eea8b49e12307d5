"""Safetensors written tensor by tensor, so that no more than one is ever in memory.

The library writes a file of tensors that are all in memory. The format is a header in JSON, its
length before it, and the bytes of the tensors after it (huggingface.co/docs/safetensors).
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch

from data_prep.files import write_json
from equipoise.conversion.hugging_face import DTYPES, INDEX
from equipoise.conversion.tensors import LazyTensor, Tensors, refuse

#: Larger models are cut into files of about this size, as Hugging Face does.
SHARD_BYTES = 5 * 10**9
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_ALIGNMENT = 8

Progress = Callable[[int], None]


def write_model(folder: Path, tensors: Tensors, progress: Progress) -> dict[str, str]:
    """Write all tensors. Returns the SHA-256 of each tensor's bytes, as they were read.

    `progress` is told how many bytes were written.
    """
    shards = list(_shards(tensors))
    hashes: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        hashes |= write_file(folder / name, shard, progress)
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        write_json(folder / INDEX, index)
    return hashes


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


def write_file(path: Path, tensors: Tensors, progress: Progress) -> dict[str, str]:
    """Write one safetensors file. Returns the SHA-256 of each tensor's bytes."""
    hashes = {}
    with path.open("wb") as file:
        file.write(_header(tensors))
        for name, tensor in tensors.items():
            hashes[name] = _write_tensor(file, name, tensor)
            progress(tensor.nbytes)
    return hashes


def _header(tensors: Tensors) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        entries[name] = {
            "dtype": _KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_tensor(file: BinaryIO, name: str, tensor: LazyTensor) -> str:
    value = tensor.read()
    if tuple(value.shape) != tensor.shape or value.dtype != tensor.dtype:
        refuse(
            f"{name} is {tuple(value.shape)} of {value.dtype}, and its checkpoint says "
            f"{tensor.shape} of {tensor.dtype}"
        )
    data = content(value)
    file.write(data)
    return hashlib.sha256(data).hexdigest()


def content(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is in one piece."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
