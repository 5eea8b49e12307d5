"""Folders of torch.distributed.checkpoint, which DTensor's and Megatron's checkpoints are.

`.metadata` says which chunk of which tensor lies where in the files `*.distcp`. torch reads it with
pickle, which would run whatever a file tells it to; here nothing but its own plain records is made.
"""

import pickle
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as records

from equipoise.conversion.mapped import LOAD_ERRORS, saved, saved_tensor
from equipoise.conversion.tensors import COPY_AGAIN, LazyTensor, Part, Tensors, join, refuse

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


def is_dcp(folder: Path) -> bool:
    """Whether this is such a folder."""
    return (folder / METADATA).is_file()


def dcp_tensors(folder: Path) -> Tensors:
    """All tensors of the folder. Raises `ConversionError` where a file or a chunk is missing."""
    path = folder / METADATA
    metadata = read_metadata(path)
    places = {(index.fqn, index.offset): place for index, place in metadata.storage_data.items()}
    tensors = {}
    for name, record in metadata.state_dict_metadata.items():
        if isinstance(record, records.TensorStorageMetadata):
            parts = [_part(folder, name, record, chunk, places) for chunk in record.chunks]
            shape, dtype = tuple(record.size), record.properties.dtype
            tensors[name] = join(f"{path}, {name}", shape, dtype, parts)
    return tensors


def layered_tensors(folder: Path) -> Tensors:
    """The same; what is stacked over layers is one `...layers.N...` for each of them."""
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in dcp_tensors(folder).items():
        above, layers, below = name.partition(".layers.")
        if not layers or below.partition(".")[0].isdigit():
            tensors[name] = tensor
            continue
        for number in range(tensor.shape[0]):
            tensors[f"{above}.layers.{number}.{below}"] = tensor[number]
    return tensors


def _part(folder: Path, name: str, record: Any, chunk: Any, places: Mapping[Any, Any]) -> Part:
    place = places.get((name, chunk.offsets))
    if place is None:
        offsets = tuple(chunk.offsets)
        refuse(f"{folder / METADATA} does not say where {name} at {offsets} is", COPY_AGAIN)
    path, start, length = _place(folder, name, place)
    shape, dtype = tuple(chunk.sizes), record.properties.dtype

    @cache
    def stored() -> LazyTensor:
        return _stored(name, shape, dtype, path, start, length)

    return Part(tuple(chunk.offsets), _when_needed(shape, dtype, stored))


def _when_needed(
    shape: tuple[int, ...], dtype: torch.dtype, tensor: Callable[[], LazyTensor]
) -> LazyTensor:
    """A tensor whose place in its file is looked for when it is read."""

    def take(index: int | slice) -> LazyTensor:
        taken = tuple(torch.empty(shape, device="meta")[index].shape)
        return _when_needed(taken, dtype, lambda: tensor()[index])

    return LazyTensor(shape, dtype, lambda: tensor().read(), take)


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
        refuse(f"{path} is missing; {name} is in it", COPY_AGAIN)
    if path.stat().st_size < start + length:
        refuse(f"{path} is cut off within {name}", COPY_AGAIN)
    return path, start, length


def _stored(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, path: Path, start: int, length: int
) -> LazyTensor:
    """The tensor of a chunk, which lies in its file as `torch.save` writes one."""
    try:
        form = saved(path, start, length)
    except LOAD_ERRORS as error:
        refuse(f"{path}: {name} cannot be read: {error}", COPY_AGAIN)
    tensor = saved_tensor(name, form, path, start, length)
    if (tensor.shape, tensor.dtype) != (shape, dtype):
        refuse(f"{path} does not hold {name}, which {METADATA} says it does", COPY_AGAIN)
    return tensor


# --- .metadata ----------------------------------------------------------------------------------


def read_metadata(path: Path) -> records.Metadata:
    """The record of a checkpoint, without running anything that the file names."""
    try:
        with path.open("rb") as file:
            read = _Unpickler(file).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, KeyError) as e:
        refuse(f"{path} is damaged: {e}", COPY_AGAIN)
    if not isinstance(read, records.Metadata) or not isinstance(read.storage_data, dict):
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


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the plain records, or a type of torch's numbers, or what does nothing."""
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        return _Record
