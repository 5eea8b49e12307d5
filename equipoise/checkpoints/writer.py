"""Safetensors written block by block, so that no model is ever in memory.

The library writes a file of tensors that are all in memory. The format is a header in JSON, its
length before it, and the bytes of the tensors after it (huggingface.co/docs/safetensors).
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import torch
import xxhash

from data_prep.files import write_json
from equipoise.checkpoints.hugging_face import DTYPES, INDEX, file_tensors
from equipoise.checkpoints.tensors import LazyTensor, Tensors, refuse, total_bytes

#: Larger models are cut into files of about this size, as Hugging Face does.
SHARD_BYTES = 5 * 10**9
#: How much of a tensor is read at once, where it can be read in parts.
BLOCK_BYTES = 2**26
#: How much is written at once: what is compared next is in the processor's cache then.
_PIECE_BYTES = 2**18
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_ALIGNMENT = 8
#: It finds damage, as SHA-256 does, at eight times its speed: more than a disk gives.
CHECKSUM = "xxh3_128"

Progress = Callable[[int], None]


def write_model(
    folder: Path, tensors: Tensors, progress: Progress, *, check: bool
) -> dict[str, str]:
    """Write all tensors. Returns the checksum of each file of weights by its name.

    `progress` is told how many bytes were written. With `check`, every byte is read back and
    compared, which raises `ConversionError` for one that is not as it was.
    """
    shards = list(_shards(tensors))
    hashes: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        hashes[name] = write_file(folder / name, shard, progress, check=check)
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        metadata = {"total_size": total_bytes(tensors)}
        index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
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


def write_file(path: Path, tensors: Tensors, progress: Progress, *, check: bool) -> str:
    """Write one safetensors file. Returns the checksum of its bytes."""
    header = _header(tensors)
    digest = xxhash.xxh3_128(header)
    with path.open("xb+", buffering=0) as file, ThreadPoolExecutor(1) as hasher:
        _write(file, memoryview(header), "its header", check=check)
        for name, tensor in tensors.items():
            for block in _blocks(name, tensor):
                data = content(block)
                # Neither needs Python's lock, nor both together longer than writing alone.
                hashing = hasher.submit(digest.update, data)
                _write(file, data, name, check=check)
                hashing.result()
                progress(len(data))
    if check:
        _confirm_header(path, tensors)
    return f"{CHECKSUM}:{digest.hexdigest()}"


def checksum(path: Path) -> str:
    """The checksum of a file's bytes."""
    with path.open("rb") as file:
        return f"{CHECKSUM}:{hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}"


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


def _blocks(name: str, tensor: LazyTensor) -> Iterator[torch.Tensor]:
    """The tensor in blocks of rows where it can be read so, or else as a whole."""
    for block in _parts(tensor):
        value = block.read()
        if (tuple(value.shape), value.dtype) != (block.shape, block.dtype):
            refuse(
                "writer.other-shape",
                f"{name} is {tuple(value.shape)} of {value.dtype}, and its checkpoint says "
                f"{block.shape} of {block.dtype}",
            )
        yield value


def _parts(tensor: LazyTensor) -> list[LazyTensor]:
    if tensor.take is None or tensor.nbytes <= BLOCK_BYTES:
        return [tensor]
    rows = max(1, BLOCK_BYTES * tensor.shape[0] // tensor.nbytes)
    return [tensor[start : start + rows] for start in range(0, tensor.shape[0], rows)]


def _write(file: FileIO, data: memoryview, name: str, *, check: bool) -> None:
    back = bytearray(min(len(data), _PIECE_BYTES))
    for start in range(0, len(data), _PIECE_BYTES):
        piece = data[start : start + _PIECE_BYTES]
        offset = file.tell()
        while len(remainder := piece[file.tell() - offset :]):
            file.write(remainder)
        if check:
            del back[len(piece) :]  # the last piece is a shorter one
            if os.preadv(file.fileno(), [back], offset) != len(piece) or back != piece:
                refuse(
                    "writer.other-bytes",
                    f"{file.name}: {name} is not what was written",
                    "Is the disk faulty?",
                )


def _confirm_header(path: Path, tensors: Tensors) -> None:
    """Every tensor must be where the library finds it; bytes were compared at their place."""

    def entries(mapping: Tensors) -> list[tuple[object, ...]]:
        return [
            (name, tensor.shape, tensor.dtype) for name, tensor in mapping.items() if tensor.nbytes
        ]

    if entries(file_tensors(path)) != entries(tensors):
        refuse("writer.other-header", f"{path}: its header is not what was written")


def content(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is in one piece."""
    return in_bytes(tensor).numpy().data


def in_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as one of bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
