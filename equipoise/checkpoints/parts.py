"""Tensors in parts: whether they are the whole, each place of it once, and how it is read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from equipoise.checkpoints.tensors import COPY_AGAIN, LazyTensor, refuse


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a larger tensor, the place there of its first element, and the file it is in."""

    offsets: tuple[int, ...]
    tensor: LazyTensor
    path: Path

    @property
    def sizes(self) -> tuple[int, ...]:
        """How far it goes in each dimension."""
        return self.tensor.shape

    @property
    def slices(self) -> tuple[slice, ...]:
        """Its place in the larger one."""
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


def join(
    origin: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype, parts: Sequence[Part]
) -> LazyTensor:
    """The tensor of which these are the parts.

    Raises `ConversionError` where they leave it, lie on one another or leave a gap. `origin` is the
    file or folder that the message begins with.
    """
    for part in parts:
        if not _inside(part, shape):
            extent = f"{part.sizes} at {part.offsets}"
            refuse(f"{part.path}: its part of {name} is {extent}, and the tensor is {shape}")
    filled = [part for part in parts if prod(part.sizes)]
    if twice := _overlapping(filled):
        first, second = twice
        refuse(
            f"{first.path} and {second.path} hold the same part of {name}, at {second.offsets}",
            "Files of two checkpoints may have been mixed: copy one of them alone.",
        )
    if sum(prod(part.sizes) for part in filled) != prod(shape):
        refuse(f"{origin}: a part of {name} is missing", COPY_AGAIN)
    return _joined(shape, dtype, parts)


def _inside(part: Part, shape: tuple[int, ...]) -> bool:
    return len(part.offsets) == len(part.sizes) == len(shape) and all(
        min(offset, size) >= 0 and offset + size <= limit
        for offset, size, limit in zip(part.offsets, part.sizes, shape, strict=True)
    )


def _overlapping(parts: Iterable[Part]) -> tuple[Part, Part] | None:
    """Two that share a place. Few are compared: those that reach the rows of the next one."""
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
            return _joined(shape[1:], dtype, list(_one_row(parts, index)))
        start, stop, _ = index.indices(shape[0])
        return _joined((stop - start, *shape[1:]), dtype, list(_rows(parts, start, stop)))

    return LazyTensor(shape, dtype, read, take)


def _one_row(parts: Iterable[Part], row: int) -> Iterator[Part]:
    for part in parts:
        local_row = row - part.offsets[0]
        if 0 <= local_row < part.sizes[0]:
            yield Part(part.offsets[1:], part.tensor[local_row], part.path)


def _rows(parts: Iterable[Part], start: int, stop: int) -> Iterator[Part]:
    for part in parts:
        first, *tail = part.offsets
        begin, end = max(start, first), min(stop, first + part.sizes[0])
        if begin < end:
            yield Part((begin - start, *tail), part.tensor[begin - first : end - first], part.path)
