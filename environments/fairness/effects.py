"""The effects that are meant: they may change a decision, and must outlive the attribute's.

Each is the slope of the mean invasiveness of a set, by least squares over all sets at once, so
that a sample in which the older patients happen to be the sicker ones is not an age effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from environments.measurement import Array

# A determinant this small beside the product of the diagonal is that of a singular matrix.
_SINGULAR = 1e-9


@dataclass(frozen=True, slots=True)
class Effects:
    """The design of the regression: an indicator per value of every factor but its first.

    A factor that some set does not name is left out.
    """

    columns_of: Mapping[str, slice]  # factor -> its columns; the last is the last value's
    design: Array  # [S, D], a column of ones first

    @classmethod
    def of(
        cls, metadata: Sequence[Mapping[str, Any]], meant: Mapping[str, tuple[str, ...]]
    ) -> "Effects":
        """The regression over the sets with these metadata on the factors that are `meant`."""
        columns, slices = [[1.0] * len(metadata)], {}
        for factor, values in meant.items():
            levels = [str(entry.get(factor)) for entry in metadata]
            if levels and set(levels) <= set(values):
                contrasts = [value for value in values[1:-1] if value in levels] + [values[-1]]
                slices[factor] = slice(len(columns), len(columns) + len(contrasts))
                columns += [[float(level == value) for level in levels] for value in contrasts]
        return cls(slices, np.array(columns, dtype=np.float64).T)

    @property
    def columns(self) -> int:
        """How many columns `sums` gives: X'X and X'y."""
        size = int(self.design.shape[1])
        return size * size + size

    def sums(self, means: Array) -> Array:
        """Each set's part of the normal equations, [S, columns]; 0 where the mean is unknown."""
        design = np.where(np.isfinite(means)[:, None], self.design, 0.0)
        size = design.shape[1] ** 2
        squares = (design[:, :, None] * design[:, None, :]).reshape(len(means), size)
        return np.concatenate([squares, design * np.nan_to_num(means)[:, None]], axis=1)

    def of_sums(self, factor: str, sums: Array) -> Array:
        """The effect of a factor from sums [..., columns]; NaN where they do not tell it."""
        if factor not in self.columns_of:
            return np.full(sums.shape[:-1], np.nan)
        size = self.design.shape[1]
        gram = sums[..., : size * size].reshape(*sums.shape[:-1], size, size)
        moments = sums[..., size * size :]
        scale = np.prod(np.diagonal(gram, axis1=-2, axis2=-1), axis=-1)
        solvable = np.abs(np.nan_to_num(np.linalg.det(gram))) > _SINGULAR * np.nan_to_num(scale)
        solvable &= scale > 0
        safe = np.where(solvable[..., None, None], gram, np.eye(size))
        slopes = np.linalg.solve(safe, moments[..., None])[..., 0]
        effect = slopes[..., self.columns_of[factor].stop - 1]
        return np.where(solvable, effect, np.nan)
