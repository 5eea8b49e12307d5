"""Tensors where they lie in a file: mapped when they are needed, and never copied.

A mapping that is only read takes no memory of its own: its pages are the system's, which drops them
when it needs them, and they leave this process with the tensor.
"""

import io
import mmap
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from equipoise.checkpoints.tensors import COPY_AGAIN, LazyTensor, refuse

#: All pages at once, where the system can: a fault for each few of them takes as long as a copy.
_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


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
    """These bytes of a file, of which there must be one. Raises `ConversionError`."""
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
            refuse(f"{path} is cut off", COPY_AGAIN)
    return memoryview(pages)[before:]


def saved(path: Path, start: int = 0, length: int | None = None) -> Any:
    """Load what `torch.save` put into these bytes of a file, its tensors on the device meta.

    Nothing that the file names is run, and no numbers are read. Raises what `torch.load` raises.
    """
    length = path.stat().st_size if length is None else length
    with path.open("rb") as file:
        window = part_of(file, start, length)
        return torch.load(window, map_location="meta", weights_only=True)


#: What `torch.load` raises for a file that is damaged or hostile.
LOAD_ERRORS = (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError)


def saved_tensor(
    name: str, form: object, path: Path, start: int = 0, length: int | None = None
) -> LazyTensor:
    """A tensor of what `saved` gives for these bytes. Raises `ConversionError` for none of them."""
    length = path.stat().st_size if length is None else length
    if not isinstance(form, torch.Tensor):
        refuse(f"{path}: {name} is no tensor")
    storage = form.untyped_storage()
    offset = storage._checkpoint_offset
    if offset is None:
        refuse(f"{path} was written by a torch before 1.6", "Load and save it with a newer one.")
    if not 0 <= offset <= length - storage.nbytes():
        refuse(f"{path} is cut off within {name}", COPY_AGAIN)
    return file_tensor(path, start + offset, form)


def part_of(file: io.BufferedReader, start: int, length: int) -> io.BufferedReader:
    """These bytes of an open file as a file of their own."""
    return io.BufferedReader(_Window(file, start, length))


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
        view = memoryview(buffer)[: max(0, self._length - self._at)]
        count = self._file.readinto(view)
        self._at += count
        return count
