"""Tensors that are read when they are needed, so that a model of any size passes through.

A tensor lies in one file or in parts of several. A file is mapped and never copied: a mapping that
is only read takes no memory of its own, for its pages are the system's, which drops them when it
needs them, and they leave this process with the tensor.
"""

import io
import mmap
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml

from equipoise.files.disk import read_yaml
from equipoise.files.errors import EquipoiseError

COPY_AGAIN = "Copy the checkpoint again, with all its files."
#: All pages at once, where the system can: a fault for each few of them takes as long as a copy.
_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
#: How much of a tensor is read at once, where it can be read in parts.
BLOCK_BYTES = 2**26
#: What `torch.load` raises for a file that is damaged or hostile.
LOAD_ERRORS = (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError)


def refuse(code: str, message: str, remedy: str = "") -> NoReturn:
    """Raise `EquipoiseError` for a checkpoint that cannot be converted; with its name."""
    raise EquipoiseError(code, message, remedy)


def yaml_mapping(path: Path) -> Mapping[str, Any]:
    """Read the mapping in a YAML file."""
    try:
        loaded = read_yaml(path)
    except (yaml.YAMLError, ValueError) as error:
        refuse("checkpoint.damaged-yaml", f"{path} is damaged: {' '.join(str(error).split())}")
    return loaded if isinstance(loaded, dict) else {}


# --- Tensors -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor of a checkpoint: what it is, and how it is read.

    `take` is indexing for a tensor that lies so that a part of it can be read without the rest.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    take: Callable[[int | slice], "LazyTensor"] | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, index: int | slice) -> "LazyTensor":
        """Some of its rows, or one, as torch indexes the first dimension."""
        if self.take:
            return self.take(index)
        shape = tuple(torch.empty(self.shape, device="meta")[index].shape)
        return LazyTensor(shape, self.dtype, lambda: self.read()[index])


#: Name -> tensor.
Tensors = Mapping[str, LazyTensor]


def total_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def megabytes(count: int) -> int:
    return -(-count // 10**6)


def in_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def in_blocks(name: str, tensor: LazyTensor) -> Iterator[torch.Tensor]:
    """Read a tensor in blocks of rows where it can be read so, or else as a whole."""
    blocks = [tensor]
    if tensor.take and tensor.nbytes > BLOCK_BYTES:
        rows = max(1, BLOCK_BYTES * tensor.shape[0] // tensor.nbytes)
        blocks = [tensor[start : start + rows] for start in range(0, tensor.shape[0], rows)]
    for block in blocks:
        value = block.read()
        if (tuple(value.shape), value.dtype) != (block.shape, block.dtype):
            refuse(
                "tensors.other-shape",
                f"{name} is {tuple(value.shape)} of {value.dtype}, and its checkpoint says "
                f"{block.shape} of {block.dtype}",
            )
        yield value


# --- Tensors in parts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a larger tensor, the place there of its first element, and the file it is in."""

    offsets: tuple[int, ...]
    tensor: LazyTensor
    path: Path

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


def join(
    origin: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype, parts: Sequence[Part]
) -> LazyTensor:
    """Join the parts of a tensor.

    Raises `EquipoiseError` where they leave it, lie on one another or leave a gap. `origin` is the
    file or folder that the message begins with.
    """
    for part in parts:
        if not len(part.offsets) == len(part.sizes) == len(shape) or not all(
            min(offset, size) >= 0 and offset + size <= limit
            for offset, size, limit in zip(part.offsets, part.sizes, shape, strict=True)
        ):
            extent = f"{part.sizes} at {part.offsets}"
            refuse(
                "tensors.other-extent",
                f"{part.path}: its part of {name} is {extent}, and the tensor is {shape}",
            )
    filled = [part for part in parts if prod(part.sizes)]
    if twice := _overlapping(filled):
        first, second = twice
        refuse(
            "tensors.repeated-part",
            f"{first.path} and {second.path} hold the same part of {name}, at {second.offsets}",
            "Files of two checkpoints may have been mixed: copy one of them alone.",
        )
    if sum(prod(part.sizes) for part in filled) != prod(shape):
        refuse("tensors.missing-part", f"{origin}: a part of {name} is missing", COPY_AGAIN)
    return _joined(shape, dtype, parts)


def _overlapping(parts: Iterable[Part]) -> tuple[Part, Part] | None:
    """Find two parts that overlap. Only those that reach the rows of the next are compared."""
    reaching: list[Part] = []
    for part in sorted(parts, key=lambda part: part.offsets):
        reaching = [candidate for candidate in reaching if _meet(candidate, part, dimensions=1)]
        if neighbour := next((o for o in reaching if _meet(o, part)), None):
            return neighbour, part
        reaching.append(part)
    return None


def _meet(first: Part, second: Part, dimensions: int | None = None) -> bool:
    """Whether both have places in common, seen in the first dimensions alone or in all."""
    places = zip(first.slices[:dimensions], second.slices[:dimensions], strict=True)
    return all(span.start < rival.stop and rival.start < span.stop for span, rival in places)


def _joined(shape: tuple[int, ...], dtype: torch.dtype, parts: Sequence[Part]) -> LazyTensor:
    if len(parts) == 1:
        return parts[0].tensor

    def read() -> torch.Tensor:
        result = torch.empty(shape, dtype=dtype)
        for part in parts:
            result[part.slices] = part.tensor.read()
        return result

    def take(index: int | slice) -> LazyTensor:
        if isinstance(index, int):
            row = [
                Part(part.offsets[1:], part.tensor[index - part.offsets[0]], part.path)
                for part in parts
                if 0 <= index - part.offsets[0] < part.sizes[0]
            ]
            return _joined(shape[1:], dtype, row)
        start, stop, _ = index.indices(shape[0])
        return _joined((stop - start, *shape[1:]), dtype, list(_rows(parts, start, stop)))

    return LazyTensor(shape, dtype, read, take)


def _rows(parts: Iterable[Part], start: int, stop: int) -> Iterator[Part]:
    for part in parts:
        first, *tail = part.offsets
        begin, end = max(start, first), min(stop, first + part.sizes[0])
        if begin < end:
            yield Part((begin - start, *tail), part.tensor[begin - first : end - first], part.path)


# --- Tensors where they lie in a file -----------------------------------------------------------


def file_tensor(path: Path, start: int, form: torch.Tensor) -> LazyTensor:
    """The tensor of a file that `form`, on the device meta, describes.

    `start` is the byte of the file at which the storage of `form` begins.
    """
    return LazyTensor(
        shape=tuple(form.shape),
        dtype=form.dtype,
        read=partial(_map, path, start, form),
        take=lambda index: file_tensor(path, start, form[index]),
    )


def _map(path: Path, start: int, form: torch.Tensor) -> torch.Tensor:
    if not form.numel():
        return torch.empty(form.shape, dtype=form.dtype)
    first = start + int(form.storage_offset()) * form.dtype.itemsize
    steps = zip(form.shape, form.stride(), strict=True)
    length = (1 + sum((count - 1) * step for count, step in steps)) * form.dtype.itemsize
    with warnings.catch_warnings():  # of what is not to be written to
        warnings.simplefilter("ignore", UserWarning)
        flat = torch.frombuffer(mapped(path, first, length), dtype=torch.uint8)
    return flat.view(form.dtype).as_strided(form.shape, form.stride())


def mapped(path: Path, start: int, length: int) -> memoryview:
    """These bytes of a file, of which there must be one."""
    before = start % mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        try:
            pages = mmap.mmap(
                *(file.fileno(), before + length),
                flags=_FLAGS,
                prot=mmap.PROT_READ,
                offset=start - before,
            )
        except ValueError:  # it has become shorter
            refuse("tensors.cut-off-file", f"{path} is cut off", COPY_AGAIN)
    return memoryview(pages)[before:]


def saved(path: Path, start: int, length: int) -> Any:
    """Load what `torch.save` put into these bytes of a file, its tensors on the device meta.

    Nothing that the file names is run, and no numbers are read. Raises what `torch.load` raises.
    """
    with path.open("rb") as file:
        window = io.BufferedReader(_Window(file, start, length))
        return torch.load(window, map_location="meta", weights_only=True)


def saved_tensor(name: str, form: object, path: Path, start: int, length: int) -> LazyTensor:
    """A tensor of what `saved` gives for these bytes."""
    if not isinstance(form, torch.Tensor):
        refuse("torch-file.no-tensor", f"{path}: {name} is not a tensor")
    storage = form.untyped_storage()
    offset = storage._checkpoint_offset
    if offset is None:
        refuse(
            "torch-file.old-format",
            f"{path} was written by a torch before 1.6",
            "Load and save it with a newer one.",
        )
    if not 0 <= offset <= length - storage.nbytes():
        refuse("torch-file.cut-off-tensor", f"{path} is cut off within {name}", COPY_AGAIN)
    return file_tensor(path, start + offset, form)


class _Window(io.RawIOBase):
    """A byte range of a file, read as a file."""

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
        view = memoryview(buffer)[: max(0, self._length - self._at)]
        count = self._file.readinto(view)
        self._at += count
        return count
