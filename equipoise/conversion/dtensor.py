"""Shards of DTensor's second form: safetensors in which every rank has its part of each tensor.

A rank's file is called shard-<rank>-model-..., and its header says under DCP_SHARDING_INFO where in
each tensor its part begins.
"""

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

from data_prep.files import read_json
from equipoise.conversion.hugging_face import file_tensors, open_file
from equipoise.conversion.tensors import LazyTensor, Part, Tensors, join, refuse

#: Beside the shards: the configuration, and which file a tensor was to go into.
METADATA = ".hf_metadata"
_PLACES = "fqn_to_file_index_mapping.json"
_SHARD = re.compile(r"shard-(\d+)-")
_OFFSETS = "DCP_SHARDING_INFO"


def is_sharded(folder: Path) -> bool:
    """Whether this is such a folder."""
    return any(_shards(folder))


def _shards(folder: Path) -> dict[int, list[Path]]:
    """Rank -> its files."""
    shards: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("shard-*.safetensors")):
        if match := _SHARD.match(path.name):
            shards.setdefault(int(match[1]), []).append(path)
    return shards


def sharded_tensors(folder: Path) -> Tensors:
    """The whole tensors. Raises `ConversionError` where a rank's file or a part is missing.

    Ranks count from 0 or 1. A last one that is missing shows in the shapes, which are compared with
    the model's.
    """
    shards = _shards(folder)
    ranks = sorted(shards)
    for rank in range(ranks[0], ranks[-1]):
        if rank not in shards:
            refuse(f"{folder} has no file of rank {rank}", "Copy it again, with all its files.")
    parts: dict[str, list[Part]] = {}
    for paths in shards.values():
        for path in paths:
            for name, part in _parts(path).items():
                parts.setdefault(name, []).append(part)
    _refuse_missing(folder, parts)
    return {name: _joined(folder, name, own) for name, own in parts.items()}


def _parts(path: Path) -> Mapping[str, Part]:
    told = json.loads((open_file(path).metadata() or {}).get(_OFFSETS, "{}"))
    tensors = file_tensors(path)
    if missing := [name for name in tensors if name not in told]:
        refuse(f"{path} does not say which part of {missing[0]} it holds")
    return {n: Part(tuple(told[n]["saved_offsets"]), t) for n, t in tensors.items()}


def _refuse_missing(folder: Path, parts: Mapping[str, object]) -> None:
    places = folder / METADATA / _PLACES
    if places.is_file() and (missing := sorted(read_json(places).keys() - parts.keys())):
        refuse(f"{folder}: no file has a part of {missing[0]}", "Copy it again, with all files.")


def _joined(folder: Path, name: str, parts: list[Part]) -> LazyTensor:
    ends = [[o + n for o, n in zip(p.offsets, p.tensor.shape, strict=True)] for p in parts]
    shape = tuple(max(at) for at in zip(*ends, strict=True))
    if sum(prod(part.tensor.shape) for part in parts) != prod(shape):
        refuse(f"{folder}: a part of {name} is missing", "Copy it again, with all its files.")

    return join(f"{folder}, {name}", shape, parts[0].tensor.dtype, parts)
