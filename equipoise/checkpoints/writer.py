"""Safetensors written block by block, so that no model is ever in memory.

The library writes a file of tensors that are all in memory. The format is a header in JSON, its
length before it, and the bytes of the tensors after it (huggingface.co/docs/safetensors).
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any

import torch
import xxhash
from huggingface_hub import ModelCardData

from equipoise.checkpoints.hugging_face import DTYPES, INDEX, file_tensors
from equipoise.checkpoints.sources import ADAPTERS, Source
from equipoise.checkpoints.tensors import (
    LazyTensor,
    Tensors,
    in_blocks,
    in_bytes,
    json_mapping,
    refuse,
    total_bytes,
)
from equipoise.files.console import is_visible
from equipoise.files.disk import write_json, write_text

# --- record ---------------------------------------------------------------------------------------
# The record of a conversion: conversion.json, and README.md, the model card.
#
# conversion.json says where a model comes from, what was checked of it, and its files' checksums.
# The card says what is known of it and evaluates nothing; that of the source or of the base is not
# copied, for its claims are of other weights or of another folder.


RECORD, CARD = "conversion.json", "README.md"
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)
_FOLDERS = re.compile(r"/\S*/")
_LONGEST = 300


def write_record(
    source: Source, folder: Path, checked: Mapping[str, Any], sums: Mapping[str, str], **more: Any
) -> None:
    """Write it into the folder. `sums` has checksums of files, by their names, that are known."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    record = {
        "schema": 1,
        "source": {
            "path": str(source.path.resolve()),
            "kind": source.kind,
            "base": source.base,
        },
        **more,
        "checked": checked,
        "files": {name: sums.get(name) or checksum(folder / name) for name in names},
    }
    write_json(folder / RECORD, record)


def recorded_weights(folder: Path) -> dict[Path, str]:
    """Files of weights and their checksums; a file that was removed since does no harm."""
    record = folder / RECORD
    if not record.is_file():
        return {}
    files = json_mapping(record).get("files")
    named = files.items() if isinstance(files, dict) else ()
    return {
        folder / name: str(digest)
        for name, digest in named
        if name == Path(name).name and (folder / name).is_file() and name.endswith(".safetensors")
    }


def write_card(
    source: Source, folder: Path, base: str | None, checked: str, *, merged: bool = True
) -> None:
    """Write the card into the folder. `merged` is false of an adapter that stays one."""
    adapter = source.form in ADAPTERS
    stays_adapter = adapter and not merged
    relation = "adapter" if stays_adapter else "finetune" if adapter else None
    on_hub = base if base and _HUB_NAME.fullmatch(base) and not Path(base).is_dir() else None
    metadata = ModelCardData(
        base_model=on_hub,
        base_model_relation=relation if on_hub else None,
        library_name="peft" if stays_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["equipoise"],
    )
    facts = {
        "Source": f"{_code(_short(source.path))}, {_code(source.kind)}",
        "Base": _code(on_hub or Path(base).name) if base else "not known",
        "Made by": _made_by(adapter=adapter, stays_adapter=stays_adapter),
        # What was not checked may name a file of this machine.
        "Checked": _code(_FOLDERS.sub("", checked)),
        "Record": f"{_code(RECORD)}, with the checksum of every file"
        if (folder / RECORD).is_file()
        else "",
        "Source's own card": f"{_code(CARD)} there; it describes the source and was not copied"
        if (source.path / CARD).is_file()
        else "",
    }
    lines = [f"- **{name}:** {fact}" for name, fact in facts.items() if fact]
    text = [
        f"---\n{metadata.to_yaml()}\n---\n",
        f"# Converted from {_code(source.path.name)}\n",
        "> **Converted, not evaluated here.** Nothing below says how well this model answers.\n",
        *lines,
        "\nThe terms of the base model hold for this one too; this card states no licence.",
    ]
    write_text(folder / CARD, "\n".join(text) + "\n")


def _made_by(*, adapter: bool, stays_adapter: bool) -> str:
    if stays_adapter:
        return "keeping the LoRA adapter one, in PEFT's form"
    return "merging the LoRA adapter into its base" if adapter else "writing the same weights anew"


def _short(path: Path) -> str:
    """A path below the working directory, or else the name: a card is read on other machines."""
    full_path = path.resolve()
    return str(
        full_path.relative_to(Path.cwd())
        if full_path.is_relative_to(Path.cwd())
        else full_path.name
    )


def _code(text: str) -> str:
    """Text of others as code on one line, in which Markdown and HTML mean nothing."""
    line = " ".join("".join(c for c in text if is_visible(c)).split())
    return f"`{line.replace('`', chr(39))[:_LONGEST]}`"


# --- writer ---------------------------------------------------------------------------------------


#: Larger models are cut into files of about this size, as Hugging Face does.
SHARD_BYTES = 5 * 10**9
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
            for block in in_blocks(name, tensor):
                data = content(block)
                # Neither needs Python's lock, nor both together longer than writing alone.
                hashing = hasher.submit(digest.update, data)
                _write(file, data, name, check=check)
                hashing.result()
                progress(len(data))
    if check:
        # Every tensor must be where the library finds it; bytes were compared at their place.
        tensors_in_file, expected = (
            [(name, tensor.shape, tensor.dtype) for name, tensor in side.items() if tensor.nbytes]
            for side in (file_tensors(path), tensors)
        )
        if tensors_in_file != expected:
            refuse("writer.other-header", f"{path}: its header is not what was written")
    return f"{CHECKSUM}:{digest.hexdigest()}"


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return f"{CHECKSUM}:{hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}"


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


def content(tensor: torch.Tensor) -> memoryview:
    return in_bytes(tensor).numpy().data
