"""Tensors that are read when they are needed, so that a model of any size passes through."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import NoReturn

import torch

from equipoise.errors import EquipoiseError


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor of a checkpoint: what it is, and how it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * self.dtype.itemsize


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


def rows(tensor: LazyTensor, count: int) -> LazyTensor:
    """The first rows of a tensor, such as those of a vocabulary that was padded."""
    if tensor.shape[0] == count:
        return tensor
    return LazyTensor((count, *tensor.shape[1:]), tensor.dtype, lambda: tensor.read()[:count])
