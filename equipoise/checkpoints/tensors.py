"""Tensors that are read when they are needed, so that a model of any size passes through."""

from collections.abc import Callable, Mapping
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


def megabytes(count: int) -> int:
    """Whole ones; a part of one is one."""
    return -(-count // 10**6)


#: Name -> tensor.
Tensors = Mapping[str, LazyTensor]


class ConversionError(EquipoiseError):
    """A checkpoint that cannot be converted; the message names the file and the tensor."""


def refuse(message: str, remedy: str = "") -> NoReturn:
    """Raise `ConversionError`."""
    raise ConversionError(message, remedy)
