"""Folders of torch.distributed.checkpoint, which DTensor's and Megatron's checkpoints are.

`.metadata` says which chunk of which tensor lies where in the files `*.distcp`. torch reads it with
pickle, which would run whatever a file tells it to; here nothing but its own plain records is made.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as records

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
_COPY_AGAIN = "Copy the checkpoint again, with all its files."


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
            return _load(self.name, self.chunks[0])
        whole = torch.empty(self.shape, dtype=self.dtype)
        for chunk in self.chunks:
            part = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[part] = _load(self.name, chunk)
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
    places = {(index.fqn, index.offset): place for index, place in metadata.storage_data.items()}
    kept = {}
    for name, record in metadata.state_dict_metadata.items():
        if isinstance(record, records.TensorStorageMetadata):
            kept[name] = _described(folder, name, record, places)
    return kept


def _described(folder: Path, name: str, record: Any, places: Mapping[Any, Any]) -> _Stored:
    chunks = []
    for chunk in record.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        place = places.get((name, chunk.offsets))
        if place is None:
            refuse(f"{folder / METADATA} does not say where {name} at {offsets} is", _COPY_AGAIN)
        chunks.append(_Chunk(offsets, sizes, *_place(folder, name, place)))
    shape = tuple(record.size)
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(shape):
        refuse(f"{folder / METADATA}: the chunks of {name} are not the whole tensor", _COPY_AGAIN)
    return _Stored(name, shape, record.properties.dtype, tuple(chunks))


def _place(folder: Path, name: str, place: Any) -> tuple[Path, int, int]:
    """File, offset and length; the file is checked to be there and long enough."""
    given = vars(place)
    if given.get("transform_descriptors"):
        refuse(f"{folder}: {name} is compressed ({given['transform_descriptors']})")
    file, start, length = given["relative_path"], given["offset"], given["length"]
    if Path(file).name != file:
        refuse(f"{folder / METADATA} names {file!r}, which is no file of its folder")
    path = folder / file
    if not path.is_file():
        refuse(f"{path} is missing; {name} is in it", _COPY_AGAIN)
    if path.stat().st_size < start + length:
        refuse(f"{path} is cut off within {name}", _COPY_AGAIN)
    return path, start, length


def _load(name: str, chunk: _Chunk) -> torch.Tensor:
    """The tensor of a chunk, read without a copy of the file's bytes beside it."""
    with chunk.path.open("rb") as file:
        window = io.BufferedReader(_Window(file, chunk.start, chunk.length))
        try:
            value = torch.load(window, map_location="cpu", weights_only=True)
        except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            refuse(f"{chunk.path}: {name} cannot be read: {error}", _COPY_AGAIN)
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != chunk.sizes:
        refuse(f"{chunk.path} does not hold {name}, which {METADATA} says it does", _COPY_AGAIN)
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
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, KeyError) as e:
        refuse(f"{path} is damaged: {e}", _COPY_AGAIN)
    if not isinstance(read, records.Metadata) or not isinstance(read.storage_data, dict):
        refuse(f"{path} is no record of a checkpoint", _COPY_AGAIN)
    return read


class _Record:
    """In place of a class that is not needed here; it takes any state and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "_Record":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the plain records, or a type of torch's numbers, or what does nothing."""
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        return _Record
