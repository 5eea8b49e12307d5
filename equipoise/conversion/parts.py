"""Whether the parts that a tensor was cut into are the whole of it, each place of it once."""

from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Protocol

from equipoise.conversion.tensors import refuse

COPY_AGAIN = "Copy the checkpoint again, with all its files."


class Part(Protocol):
    """A box in a tensor, and the file that holds it."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where it begins in each dimension."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How far it goes in each."""

    @property
    def path(self) -> Path:
        """The file."""


def refuse_unless_whole(
    place: Path, name: str, shape: tuple[int, ...], parts: Sequence[Part]
) -> None:
    """Raise `ConversionError` where parts leave their tensor, lie on one another or leave a gap.

    `place` is what said so: the file or folder that the message begins with.
    """
    for part in parts:
        if not _inside(part, shape):
            told = f"{part.sizes} at {part.offsets}"
            refuse(f"{part.path}: its part of {name} is {told}, and the tensor is {shape}")
    filled = [part for part in parts if prod(part.sizes)]
    if twice := _overlapping(filled):
        first, second = twice
        refuse(
            f"{first.path} and {second.path} hold the same part of {name}, at {second.offsets}",
            "Files of two checkpoints may have been mixed: copy one of them alone.",
        )
    if sum(prod(part.sizes) for part in filled) != prod(shape):
        refuse(f"{place}: a part of {name} is missing", COPY_AGAIN)


def _inside(part: Part, shape: tuple[int, ...]) -> bool:
    return len(part.offsets) == len(part.sizes) == len(shape) and all(
        min(offset, size) >= 0 and offset + size <= most
        for offset, size, most in zip(part.offsets, part.sizes, shape, strict=True)
    )


def _overlapping(parts: Iterable[Part]) -> tuple[Part, Part] | None:
    """Two that share a place. Few are compared: those that reach the rows of the next one."""
    reaching: list[Part] = []
    for part in sorted(parts, key=lambda part: part.offsets):
        reaching = [other for other in reaching if _reaches(other, part, dimensions=1)]
        if other := next((o for o in reaching if _reaches(o, part)), None):
            return other, part
        reaching.append(part)
    return None


def _reaches(first: Part, second: Part, dimensions: int | None = None) -> bool:
    """Whether both have places in common, seen in the first dimensions alone or in all."""
    return all(
        a < b + size_b and b < a + size_a
        for a, size_a, b, size_b in zip(
            first.offsets[:dimensions],
            first.sizes[:dimensions],
            second.offsets[:dimensions],
            second.sizes[:dimensions],
            strict=True,
        )
    )
