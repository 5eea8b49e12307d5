"""Statistics by name in the columns of a table of sums, so that no metric counts columns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from environments.measurement import Array, quotient


@dataclass(frozen=True, slots=True)
class Block:
    """The columns of one statistic, an array of this shape, in sums [..., K]."""

    start: int
    shape: tuple[int, ...]

    @property
    def columns(self) -> int:
        """The number of columns."""
        return math.prod(self.shape)

    def of(self, sums: Array) -> Array:
        """Take the statistic out of sums: [..., K] -> [..., *shape]."""
        columns = sums[..., self.start : self.start + self.columns]
        return columns.reshape((*sums.shape[:-1], *self.shape))

    def at(self, index: int) -> "Block":
        """The block of one entry of the first axis."""
        shape = self.shape[1:]
        return Block(self.start + index * math.prod(shape), shape)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Statistics that stand beside one another in a table of sums."""

    by_name: Mapping[str, Block]

    @classmethod
    def of_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> "Blocks":
        """Place statistics of these shapes, in this order."""
        start, blocks = 0, {}
        for name, shape in shapes.items():
            blocks[name] = Block(start, shape)
            start += math.prod(shape)
        return cls(blocks)

    @property
    def columns(self) -> int:
        """The number of columns of all."""
        return sum(block.columns for block in self.by_name.values())

    def __getitem__(self, name: str) -> Block:
        return self.by_name[name]

    def join(self, rows: tuple[int, ...], statistics: Mapping[str, Array]) -> Array:
        """Put statistics [*rows, *shape] beside one another, [*rows, K]; NaN for a missing one.

        Raises `ValueError` for a statistic of another shape, `KeyError` for one without a place.
        """
        table = np.full((*rows, self.columns), np.nan)
        for name, values in statistics.items():
            block = self.by_name[name]
            shape = (*rows, *block.shape)
            if values.shape != shape:
                raise ValueError(f"{name} has the shape {values.shape}, not {shape}")
            flat = values.reshape((*rows, block.columns))
            table[..., block.start : block.start + block.columns] = flat
        return table


def mean_of(pairs: Array) -> Array:
    """Divide totals by their numbers, [..., 2] -> [...]; NaN where there is none."""
    return quotient(pairs[..., 0], pairs[..., 1])
