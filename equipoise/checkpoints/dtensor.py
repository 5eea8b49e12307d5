"""Shards of DTensor's second form: safetensors in which every rank has its part of each tensor.

A rank's file is called shard-<rank>-model-<n>-of-<of>, counted from 1, and its header says under
DCP_SHARDING_INFO where in each tensor its part begins.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.checkpoints.hugging_face import file_tensors, open_file
from equipoise.checkpoints.parts import Part, join
from equipoise.checkpoints.settings import json_mapping
from equipoise.checkpoints.tensors import COPY_AGAIN, LazyTensor, Tensors, refuse

#: Beside the shards: the configuration, and which file a tensor was to go into.
METADATA = ".hf_metadata"
_PLACES = "fqn_to_file_index_mapping.json"
_SHARD = re.compile(r"shard-(\d{1,9})-model-(\d{1,9})-of-(\d{1,9})\.safetensors$")
_OFFSETS = "DCP_SHARDING_INFO"


def shards(folder: Path) -> list[Path]:
    """The files of all ranks, where this is such a folder."""
    return sorted(path for path in folder.glob("shard-*") if _SHARD.match(path.name))


def sharded_tensors(folder: Path) -> Tensors:
    """The whole tensors. Raises `ConversionError` where a rank's file or a part is missing.

    A last rank that is missing shows in the shapes alone, which are compared with the model's.
    """
    files = shards(folder)
    parts: dict[str, list[Part]] = {}
    for path in files:
        for name, part in _parts(path).items():
            parts.setdefault(name, []).append(part)
    _refuse_missing(folder, parts)
    gap = _absent(files) or folder
    return {name: _joined(gap, name, pieces) for name, pieces in parts.items()}


def _parts(path: Path) -> Mapping[str, Part]:
    offsets = _read_offsets(path)
    tensors = file_tensors(path)
    return {n: Part(_begins(path, n, offsets.get(n)), t, path) for n, t in tensors.items()}


def _read_offsets(path: Path) -> Mapping[str, Any]:
    text = (open_file(path).metadata() or {}).get(_OFFSETS, "")
    try:
        offsets = json.loads(text)
    except (ValueError, RecursionError):
        offsets = None
    if not isinstance(offsets, dict):
        refuse(f"{path} does not say under {_OFFSETS} which parts it holds", COPY_AGAIN)
    return offsets


def _begins(path: Path, name: str, entry: object) -> tuple[int, ...]:
    offsets = entry.get("saved_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
        refuse(f"{path} does not say which part of {name} it holds", COPY_AGAIN)
    return tuple(offsets)


def _refuse_missing(folder: Path, parts: Mapping[str, object]) -> None:
    places = folder / METADATA / _PLACES
    listing = json_mapping(places) if places.is_file() else {}
    if missing := sorted(listing.keys() - parts.keys()):
        refuse(f"{folder}: no file has a part of {missing[0]}", COPY_AGAIN)


def _absent(files: Iterable[Path]) -> Path | None:
    """The first file that the names of the others leave out.

    A rank that had nothing to save writes none, so it is named where a part is missing alone.
    """
    numbers = {
        path: tuple(map(int, m.groups())) for path in files if (m := _SHARD.match(path.name))
    }
    positions = {(rank, number) for rank, number, _ in numbers.values()}
    last = max(rank for rank, _, _ in numbers.values())
    for path, (_, number, total) in numbers.items():
        for rank in range(1, last + 1):
            if (rank, number) not in positions:
                return path.with_name(
                    f"shard-{rank:05}-model-{number:05}-of-{total:05}.safetensors"
                )
    return None


def _joined(gap: Path, name: str, parts: list[Part]) -> LazyTensor:
    first = parts[0]
    for part in parts:
        if not len(part.offsets) == len(part.sizes) == len(first.sizes):
            refuse(f"{part.path}: its part of {name} has other dimensions than its place")
        if part.tensor.dtype != first.tensor.dtype:
            refuse(f"{part.path}: {name} is {part.tensor.dtype}, and in {first.path} another")
    ends = zip(*(part.slices for part in parts), strict=True)
    shape = tuple(max(end.stop for end in dimension) for dimension in ends)
    return join(gap, name, shape, first.tensor.dtype, parts)
