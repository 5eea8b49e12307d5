"""Folders of torch.distributed.checkpoint, which DTensor's and Megatron's checkpoints are.

`.metadata` says which chunk of which tensor lies where in the files `*.distcp`. torch reads it with
pickle, which would run whatever a file tells it to; here nothing but its own plain records is made.
"""

import io
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as records

from equipoise.conversion.parts import COPY_AGAIN, refuse_unless_whole
from equipoise.conversion.tensors import LazyTensor, Tensors, refuse

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

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in chunks."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[_Chunk, ...]

    def lazy(self) -> LazyTensor:
        return LazyTensor(self.shape, self.dtype, self.read)

    def read(self) -> torch.Tensor:
        """The whole tensor; one that lies in one piece is in memory once."""
        if len(self.chunks) == 1:
            return _load(self.name, self.dtype, self.chunks[0])
        whole = torch.empty(self.shape, dtype=self.dtype)
        for chunk in self.chunks:
            part = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[part] = _load(self.name, self.dtype, chunk)
        return whole

    def layer(self, number: int) -> "_Stored":
        """One layer of a tensor whose first dimension is the layers."""
        inside = [c for c in self.chunks if c.offsets[0] == number and c.sizes[0] == 1]
        return _Stored(self.name, (1, *self.shape[1:]), self.dtype, tuple(map(_first, inside)))


def _first(chunk: _Chunk) -> _Chunk:
    offsets = (0, *chunk.offsets[1:])
    return _Chunk(offsets, chunk.sizes, chunk.path, chunk.start, chunk.length)


def is_dcp(folder: Path) -> bool:
    """Whether this is such a folder."""
    return (folder / METADATA).is_file()


def dcp_tensors(folder: Path) -> Tensors:
    """All tensors of the folder. Raises `ConversionError` where a file or a chunk is missing."""
    return {name: stored.lazy() for name, stored in _stored(folder).items()}


def layered_tensors(folder: Path) -> Tensors:
    """The same; what is stacked over layers is one `...layers.N...` for each of them."""
    tensors: dict[str, LazyTensor] = {}
    for name, stored in _stored(folder).items():
        above, layers, below = name.partition(".layers.")
        if not layers or below.partition(".")[0].isdigit():
            tensors[name] = stored.lazy()
            continue
        for number in range(stored.shape[0]):
            tensors[f"{above}.layers.{number}.{below}"] = _layer(stored, number)
    return tensors


def _layer(stored: _Stored, number: int) -> LazyTensor:
    one = stored.layer(number)
    if sum(prod(chunk.sizes) for chunk in one.chunks) == prod(one.shape):
        return LazyTensor(one.shape[1:], one.dtype, lambda: one.read()[0])
    # Chunks of several layers: what is wanted is cut out of the whole.
    return LazyTensor(one.shape[1:], one.dtype, lambda: stored.read()[number].clone())


def _stored(folder: Path) -> Mapping[str, _Stored]:
    metadata = read_metadata(folder / METADATA)
    places = {
        _fields(index, "fqn", "offset"): place
        for index, place in metadata.storage_data.items()
        if isinstance(index, records.MetadataIndex)
    }
    kept = {}
    for name, record in metadata.state_dict_metadata.items():
        if isinstance(record, records.TensorStorageMetadata):
            kept[name] = _described(folder, name, record, places)
    _refuse_shared_bytes(kept)
    return kept


def _described(folder: Path, name: str, record: Any, places: Mapping[Any, Any]) -> _Stored:
    size, properties, pieces = _fields(record, "size", "properties", "chunks")
    shape, (dtype,) = _numbers(size), _fields(properties, "dtype")
    if shape is None or not isinstance(dtype, torch.dtype) or not isinstance(pieces, list):
        refuse(f"{folder / METADATA} does not say what {name} is", COPY_AGAIN)
    chunks = [_chunk(folder, name, dtype, piece, places) for piece in pieces]
    refuse_unless_whole(folder / METADATA, name, shape, chunks)
    return _Stored(name, shape, dtype, tuple(chunks))


def _chunk(
    folder: Path, name: str, dtype: torch.dtype, chunk: Any, places: Mapping[Any, Any]
) -> _Chunk:
    offsets, sizes = map(_numbers, _fields(chunk, "offsets", "sizes"))
    if offsets is None or sizes is None:
        refuse(f"{folder / METADATA} does not say which parts {name} has", COPY_AGAIN)
    place = places.get((name, torch.Size(offsets)))
    if place is None:
        refuse(f"{folder / METADATA} does not say where {name} at {offsets} is", COPY_AGAIN)
    path, start, length = _place(folder, name, place)
    if length < prod(sizes) * dtype.itemsize:
        refuse(f"{path} has {length:,} bytes for {name} at {offsets}, too few for {sizes}")
    return _Chunk(offsets, sizes, path, start, length)


def _fields(record: object, *names: str) -> tuple[Any, ...]:
    """What a record says; a file that is damaged may leave out any of it."""
    return tuple([getattr(record, name, None) for name in names])


def _numbers(value: object) -> tuple[int, ...] | None:
    """Offsets or sizes, or None for what is none of these."""
    if isinstance(value, tuple) and all(type(number) is int and number >= 0 for number in value):
        return tuple(value)
    return None


def _place(folder: Path, name: str, place: object) -> tuple[Path, int, int]:
    """File, offset and length; the file is checked to be there and long enough."""
    file, transforms, *given = _fields(
        place, "relative_path", "transform_descriptors", "offset", "length"
    )
    if transforms:
        refuse(f"{folder}: {name} is compressed, which is not read here")
    numbers = _numbers(tuple(given))
    if numbers is None or not isinstance(file, str):
        refuse(f"{folder / METADATA} does not say where {name} is", COPY_AGAIN)
    if Path(file).name != file:
        refuse(f"{folder / METADATA} names {file!r}, which is no file of its folder")
    path = folder / file
    if not path.is_file():
        refuse(f"{path} is missing; {name} is in it", COPY_AGAIN)
    start, length = numbers
    if path.stat().st_size < start + length:
        refuse(f"{path} is cut off within {name}", COPY_AGAIN)
    return path, start, length


def _refuse_shared_bytes(tensors: Mapping[str, _Stored]) -> None:
    """No two parts lie in the same bytes: one of them would be another tensor's."""
    ranges = sorted(
        (chunk.path, chunk.start, chunk.start + chunk.length, name)
        for name, stored in tensors.items()
        for chunk in stored.chunks
    )
    for (path, _, end, name), (other, start, _, another) in pairwise(ranges):
        if path == other and start < end:
            refuse(f"{path}: {METADATA} puts {name} and {another} into the same bytes", COPY_AGAIN)


def _load(name: str, dtype: torch.dtype, chunk: _Chunk) -> torch.Tensor:
    """The tensor of a chunk, read without a copy of the file's bytes beside it."""
    with chunk.path.open("rb") as file:
        window = io.BufferedReader(_Window(file, chunk.start, chunk.length))
        try:
            value = torch.load(window, map_location="cpu", weights_only=True)
        except _DAMAGED as error:
            refuse(f"{chunk.path}: {name} cannot be read: {error}", COPY_AGAIN)
    if not isinstance(value, torch.Tensor) or (tuple(value.shape), value.dtype) != (
        chunk.sizes,
        dtype,
    ):
        refuse(f"{chunk.path} does not hold {name}, which {METADATA} says it does", COPY_AGAIN)
    return value


class _Window(io.RawIOBase):
    """Some bytes of a file as a file of its own."""

    def __init__(self, file: io.BufferedReader, start: int, length: int) -> None:
        super().__init__()
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._at)
        wanted = memoryview(buffer)[: max(0, self._length - self._at)]
        count = self._file.readinto(wanted)
        self._at += count
        return count


# --- .metadata ----------------------------------------------------------------------------------


def read_metadata(path: Path) -> records.Metadata:
    """The record of a checkpoint, without running anything that the file names."""
    try:
        with path.open("rb") as file:
            read = _Unpickler(file).load()
    except _DAMAGED as error:
        refuse(f"{path} is damaged: {error}", COPY_AGAIN)
    parts = ("state_dict_metadata", "storage_data")
    if not isinstance(read, records.Metadata) or not all(
        isinstance(getattr(read, part, None), dict) for part in parts
    ):
        refuse(f"{path} is no record of a checkpoint", COPY_AGAIN)
    return read


class _Record:
    """In place of a class that is not needed here; it takes any state and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "_Record":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Unpickler(pickle._Unpickler):
    """Python's own, for the one in C makes as much room as an opcode asks for: 32 GB for 5 bytes.

    It takes 6 s, and the other 1 s, for the 45,000 parts of a 70B model on 64 ranks.
    """

    def find_class(self, module: str, name: str) -> Any:
        """One of the plain records, or a type of torch's numbers, or what does nothing."""
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        return _Record
