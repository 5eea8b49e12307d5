"""Tensors that are read when they are needed, so that a model of any size passes through."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NoReturn

import torch

from equipoise.errors import EquipoiseError

COPY_AGAIN = "Copy the checkpoint again, with all its files."


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
        """Its size in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, index: int | slice) -> "LazyTensor":
        """Some of its rows, or one, as torch indexes the first dimension."""
        if self.take:
            return self.take(index)
        shape = tuple(torch.empty(self.shape, device="meta")[index].shape)
        return LazyTensor(shape, self.dtype, lambda: self.read()[index])


def size(count: int) -> str:
    """So many bytes in words."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


#: Name -> tensor.
Tensors = Mapping[str, LazyTensor]


class ConversionError(EquipoiseError):
    """A checkpoint that cannot be converted; the message names the file and the tensor."""


def refuse(message: str, remedy: str = "") -> NoReturn:
    """Raise `ConversionError`."""
    raise ConversionError(message, remedy)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a larger tensor, and the place there of its first element."""

    offsets: tuple[int, ...]
    tensor: LazyTensor


def join(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, parts: Sequence[Part]
) -> LazyTensor:
    """The tensor of which these are the parts. Raises `ConversionError` where one is missing."""
    if sum(prod(part.tensor.shape) for part in parts) != prod(shape):
        refuse(f"{name}: its parts are not the whole tensor", COPY_AGAIN)
    if len(parts) == 1:
        return parts[0].tensor

    def read() -> torch.Tensor:
        whole = torch.empty(shape, dtype=dtype)
        for part in parts:
            place = zip(part.offsets, part.tensor.shape, strict=True)
            whole[tuple(slice(first, first + count) for first, count in place)] = part.tensor.read()
        return whole

    def take(index: int | slice) -> LazyTensor:
        if isinstance(index, int):
            return join(name, shape[1:], dtype, list(_one_row(parts, index)))
        start, stop, _ = index.indices(shape[0])
        return join(name, (stop - start, *shape[1:]), dtype, list(_rows(parts, start, stop)))

    return LazyTensor(shape, dtype, read, take)


def _one_row(parts: Iterable[Part], row: int) -> Iterator[Part]:
    for part in parts:
        own = row - part.offsets[0]
        if 0 <= own < part.tensor.shape[0]:
            yield Part(part.offsets[1:], part.tensor[own])


def _rows(parts: Iterable[Part], start: int, stop: int) -> Iterator[Part]:
    for part in parts:
        first, *others = part.offsets
        begin, end = max(start, first), min(stop, first + part.tensor.shape[0])
        if begin < end:
            yield Part((begin - start, *others), part.tensor[begin - first : end - first])
