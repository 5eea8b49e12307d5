"""Folders of torch.distributed.checkpoint, which DTensor's and Megatron's checkpoints are.

`.metadata` says which chunk of which tensor lies where in the files `*.distcp`. torch reads it with
pickle, which would run whatever a file tells it to; here nothing but its own plain records is made.
"""

import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as records

from equipoise.checkpoints.tensors import (
    COPY_AGAIN,
    LOAD_ERRORS,
    LazyTensor,
    Part,
    Tensors,
    join,
    refuse,
    saved,
    saved_tensor,
)
from equipoise.files.untrusted import read_object

METADATA = ".metadata"
#: What a `.metadata` is made of; everything else in one (plans, enums) becomes an empty object.
_PLAIN = {
    (record.__module__, record.__name__): record
    for record in (
        *(records.Metadata, records.MetadataIndex, records.TensorStorageMetadata),
        *(records.BytesStorageMetadata, records.ChunkStorageMetadata),
        *(records.TensorProperties, records._MEM_FORMAT_ENCODING, torch.Size),
    )
}
#: What unpickling raises for bytes that are damaged or made to harm.
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, KeyError),
    *(IndexError, OverflowError, MemoryError, RuntimeError, struct.error),
)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a tensor, and the bytes of the file that hold it."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    path: Path
    start: int
    length: int

    def part(self) -> Part:
        """The numbers; where they lie in the file is looked for when they are read."""
        stored = cache(partial(_stored, self))
        return Part(self.offsets, _when_needed(self.sizes, self.dtype, stored), self.path)


def is_dcp(folder: Path) -> bool:
    return (folder / METADATA).is_file()


def dcp_tensors(folder: Path, within: str | None = None) -> Tensors:
    """Map the folder's tensors by name.

    A tensor that was saved as {`within`: {name: tensor}} is called `name`.
    """
    path = folder / METADATA
    metadata = read_metadata(path)
    tensors: dict[str, LazyTensor] = {}
    every: list[_Chunk] = []
    for name, shape, dtype, chunks in _chunked(folder, metadata):
        tensor_name = _name(metadata.planner_data, name, within)
        tensors[tensor_name] = join(path, name, shape, dtype, [chunk.part() for chunk in chunks])
        every += chunks
    # No two parts lie in the same bytes: one of them would be another tensor's.
    every.sort(key=lambda chunk: (chunk.path, chunk.start))
    for chunk, after in pairwise(every):
        if chunk.path == after.path and after.start < chunk.start + chunk.length:
            collision = f"{chunk.name} and {after.name} into the same bytes"
            refuse(
                "torch-dist.shared-bytes", f"{chunk.path}: {METADATA} puts {collision}", COPY_AGAIN
            )
    return tensors


def _chunked(
    folder: Path, metadata: records.Metadata
) -> Iterator[tuple[str, tuple[int, ...], torch.dtype, list[_Chunk]]]:
    """Name, shape, dtype and parts of every tensor."""
    places = {
        _fields(index, "fqn", "offset"): location
        for index, location in metadata.storage_data.items()
        if isinstance(index, records.MetadataIndex)
    }
    path = folder / METADATA
    for name, record in metadata.state_dict_metadata.items():
        if not isinstance(record, records.TensorStorageMetadata):
            continue
        size, properties, pieces = _fields(record, "size", "properties", "chunks")
        shape, (dtype,) = _numbers(size), _fields(properties, "dtype")
        if shape is None or not isinstance(dtype, torch.dtype) or not isinstance(pieces, list):
            refuse(
                "torch-dist.undescribed-tensor", f"{path} does not say what {name} is", COPY_AGAIN
            )
        yield name, shape, dtype, [_chunk(folder, name, dtype, p, places) for p in pieces]


def _name(paths: object, name: str, within: str | None) -> str:
    """The name below `within`: torch joins keys with dots and stores the original keys too."""
    match paths.get(name) if isinstance(paths, dict) else None:
        case (str(first), str(rest)) if first == within:
            return rest
    return name


def layered_tensors(folder: Path) -> Tensors:
    """Read all tensors; one that is stacked over layers becomes one `...layers.N...` for each."""
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in dcp_tensors(folder).items():
        above, layers, below = name.partition(".layers.")
        if not layers or below.partition(".")[0].isdigit():
            tensors[name] = tensor
            continue
        for number in range(tensor.shape[0]):
            tensors[f"{above}.layers.{number}.{below}"] = tensor[number]
    return tensors


def torch_dist_tensors(folder: Path) -> Tensors:
    """Read the same from a folder of Megatron's."""
    metadata = folder / "metadata.json"
    backend = read_object(metadata).get("sharded_backend") if metadata.is_file() else None
    if backend != "torch_dist":
        refuse(
            "torch-dist.unknown-backend",
            f"{folder} has the format {backend}; what is read here is torch_dist",
        )
    if not is_dcp(folder):
        refuse(
            "torch-dist.no-metadata",
            f"{folder} has no .metadata: it was not written to its end",
            f"{COPY_AGAIN} Or take an older one.",
        )
    return layered_tensors(folder)


def _chunk(
    folder: Path, name: str, dtype: torch.dtype, chunk: Any, places: Mapping[Any, Any]
) -> _Chunk:
    offsets, sizes = map(_numbers, _fields(chunk, "offsets", "sizes"))
    if offsets is None or sizes is None:
        refuse(
            "torch-dist.unlisted-parts",
            f"{folder / METADATA} does not say which parts {name} has",
            COPY_AGAIN,
        )
    location = places.get((name, torch.Size(offsets)))
    if location is None:
        refuse(
            "torch-dist.unplaced-part",
            f"{folder / METADATA} does not say where {name} at {offsets} is",
            COPY_AGAIN,
        )
    path, start, length = _locate(folder, name, location)
    if length < prod(sizes) * dtype.itemsize:
        refuse(
            "torch-dist.short-part",
            f"{path} has {length:,} bytes for {name} at {offsets}, too few for {sizes}",
        )
    return _Chunk(name, offsets, sizes, dtype, path, start, length)


def _fields(record: object, *names: str) -> tuple[Any, ...]:
    """Return a record's fields; None for what a damaged file leaves out."""
    return tuple([getattr(record, name, None) for name in names])


def _numbers(value: object) -> tuple[int, ...] | None:
    """Offsets or sizes, or None for what is none of these."""
    if isinstance(value, tuple) and all(type(number) is int and number >= 0 for number in value):
        return tuple(value)
    return None


def _locate(folder: Path, name: str, location: object) -> tuple[Path, int, int]:
    """Return file, offset and length; check that the file is there and long enough."""
    file, transforms, *extent = _fields(
        location, "relative_path", "transform_descriptors", "offset", "length"
    )
    if transforms:
        refuse(
            "torch-dist.compressed-tensor",
            f"{folder}: {name} is compressed, which is not read here",
        )
    numbers = _numbers(tuple(extent))
    if numbers is None or not isinstance(file, str):
        refuse(
            "torch-dist.unplaced-tensor",
            f"{folder / METADATA} does not say where {name} is",
            COPY_AGAIN,
        )
    if Path(file).name != file:
        refuse(
            "torch-dist.foreign-file",
            f"{folder / METADATA} names {file!r}, which is not a file of its folder",
        )
    path = folder / file
    if not path.is_file():
        refuse("torch-dist.missing-file", f"{path} is missing; {name} is in it", COPY_AGAIN)
    start, length = numbers
    if path.stat().st_size < start + length:
        refuse("torch-dist.cut-off-file", f"{path} is cut off within {name}", COPY_AGAIN)
    return path, start, length


def _when_needed(
    shape: tuple[int, ...], dtype: torch.dtype, tensor: Callable[[], LazyTensor]
) -> LazyTensor:
    """A tensor that finds its place in the file when it is read."""

    def take(index: int | slice) -> LazyTensor:
        part_shape = tuple(torch.empty(shape, device="meta")[index].shape)
        return _when_needed(part_shape, dtype, lambda: tensor()[index])

    return LazyTensor(shape, dtype, lambda: tensor().read(), take)


def _stored(chunk: _Chunk) -> LazyTensor:
    """The tensor of a chunk, which lies in its file as `torch.save` writes one."""
    name, path, start, length = chunk.name, chunk.path, chunk.start, chunk.length
    try:
        form = saved(path, start, length)
    except LOAD_ERRORS as error:
        refuse("torch-dist.unreadable-part", f"{path}: {name} cannot be read: {error}", COPY_AGAIN)
    tensor = saved_tensor(name, form, path, start, length)
    if (tensor.shape, tensor.dtype) != (chunk.sizes, chunk.dtype):
        refuse(
            "torch-dist.absent-tensor",
            f"{path} does not hold {name}, which {METADATA} says it does",
            COPY_AGAIN,
        )
    return tensor


# --- .metadata ----------------------------------------------------------------------------------


def read_metadata(path: Path) -> records.Metadata:
    """The record of a checkpoint, without running anything that the file names."""
    try:
        with path.open("rb") as file:
            read = _Unpickler(file).load()
    except _DAMAGED as error:
        refuse("torch-dist.damaged-metadata", f"{path} is damaged: {error}", COPY_AGAIN)
    parts = ("state_dict_metadata", "storage_data")
    if not isinstance(read, records.Metadata) or not all(
        isinstance(getattr(read, part, None), dict) for part in parts
    ):
        refuse("torch-dist.foreign-metadata", f"{path} is not a record of a checkpoint", COPY_AGAIN)
    return read


class _Record:
    """In place of a class that is not needed here; it takes any state and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "_Record":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def _read_member(owner: object, name: str) -> object:
    """Return the member of an enum that Python 3.11.2 pickled as `getattr(enum, name)`.

    Raises `pickle.UnpicklingError` for an attribute of anything else.
    """
    if owner is records._MEM_FORMAT_ENCODING:
        return records._MEM_FORMAT_ENCODING[name]
    if owner is _Record:  # an enum that is not needed here
        return _Record()
    raise pickle.UnpicklingError(f"it asks for {name!r} of something that is not an enum")


class _Unpickler(pickle._Unpickler):
    """Python's own, for the one in C takes all memory where five bytes ask for it.

    It takes 6 s, and the other 1 s, for the 45,000 parts of a 70B model on 64 ranks.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a plain record, a type of torch's numbers, or a class that does nothing."""
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        if (module, name) == ("builtins", "getattr"):
            return _read_member
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        return _Record
