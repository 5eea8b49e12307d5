"""Metrics that can be resampled: what an environment measures and evaluation gives intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


# --- sums -----------------------------------------------------------------------------------------
# Statistics by name in the columns of a table of sums, so that no metric counts columns.


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
    """Statistics side by side in a table of sums."""

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


def pairs_of(values: Array) -> Array:
    """Pair values, 0 where not finite, with whether they are: [...] -> [..., 2]; see `mean_of`."""
    has_value = np.isfinite(values)
    return np.stack([np.where(has_value, values, 0.0), has_value], axis=-1)


# --- measurement ----------------------------------------------------------------------------------


Direction = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a guarded metric may move: `by` in its own unit, or in parts of its value before."""

    by: float
    relative: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """A function of sums over clusters, [..., K] -> [...]; NaN where it is not defined.

    `better` says which direction is an improvement, None that a change is neither. `floor` asks
    for a comparison with `null_sums`, in which larger is further from the null; an `unbiased` one
    needs nothing taken off, so that it has an interval and a cut. `outcomes` [C] is
    a yes or no for McNemar's test in every cluster where `of_sums` of its own row is defined.
    A `constant` is a property of the prompts: no model changes it, so it is never compared.
    A metric with a `guard` must not move by more than that margin: towards its worse side where
    `better` names a direction, to either side where it does not. One `of_reference` is a distance
    from what the frozen model decides, see `Environment.set_reference`; one that is
    `zero_if_frozen` is 0 by construction where that model itself is measured. One with `trials` may
    be `of_part` of the clusters, such as emergencies: the gate then counts those with trials alone.
    """

    of_sums: Callable[[Array], Array]
    better: Direction | None = None
    floor: bool = False
    outcomes: NDArray[np.bool_] | None = None
    constant: bool = False
    guard: Margin | None = None
    trials: Callable[[Array], Array] | None = None
    of_reference: bool = False
    zero_if_frozen: bool = False
    of_part: bool = False
    unbiased: bool = False

    def __post_init__(self) -> None:
        if self.trials is not None and self.guard is not None and self.guard.relative:
            raise ValueError("the margin of a share is in its own unit, not a relative one")

    def at(self, sums: Array) -> Array:
        """`of_sums`, in which a plain division by 0 is quietly NaN."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.of_sums(sums)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics as functions of sums over clusters, so that evaluation can resample clusters.

    `sums` [C, K] holds K statistics added up in each of C clusters (counterfactual sets,
    questions; rows of one name are added): 10,000 bootstrap draws are then a matrix product.
    `null_sums(rng, draws)` gives total sums [draws, K] under the hypothesis to be refuted (race
    permuted within sets), NaN in columns that no floor needs. `breakdowns` are further sections
    of evaluation.json: section -> key -> name -> metric. `strata` [C] are the parts of the
    population (clinical cases, scopes); their sizes were fixed when the clusters were drawn.
    """

    clusters: tuple[str, ...]
    sums: Array
    metrics: Mapping[str, Metric]
    breakdowns: Mapping[str, Mapping[str, Mapping[str, Metric]]] = field(default_factory=dict)
    null_sums: Callable[[np.random.Generator, int], Array] | None = None
    strata: tuple[str, ...] | None = None

    def point_estimates(self) -> dict[str, float]:
        """Compute every metric on the data as they are, as training logs show it."""
        total = self.sums.sum(axis=0)
        return {name: float(metric.at(total)) for name, metric in self.metrics.items()}


@dataclass(frozen=True, slots=True)
class Modes:
    """Other ways to answer an evaluation's prompts, for comparison with the trained model.

    `measured` has the metrics of the evaluation, over the same clusters; `stages` says what
    "baseline" and "final" are called beside them; `seconds` is how long each part of one prompt
    took on average; `sources` names what they depend on besides the model; `notes` are caveats for
    a reader.
    """

    measured: Mapping[str, Measurement]
    stages: Mapping[str, str]
    seconds: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def quotient(total: Array, count: Array | NDArray[np.int_]) -> Array:
    """A total over its count, NaN where the count is not above 0."""
    undefined = np.full(np.broadcast_shapes(np.shape(total), np.shape(count)), np.nan)
    return np.asarray(np.divide(total, count, out=undefined, where=np.asarray(count) > 0))


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric that is the mean of a value per rollout; a None or NaN among them does not count.

    A `yes_or_no` (1 or 0) has outcomes, for McNemar's test, where no cluster has two values. The
    values of a `share`, and of every yes or no, are from 0 to 1: its intervals have a width even
    where all of them are 0 or 1. A `guard` is that of the metric.
    """

    values: Sequence[float | None]
    better: Direction | None = None
    yes_or_no: bool = False
    share: bool = False
    guard: Margin | None = None


def measure_means(clusters: Sequence[str], means: Mapping[str, Mean]) -> Measurement:
    """Measure rollouts [N] by metrics that are means; NaN for one without a value.

    `clusters` [N] says which rollouts belong together: the ids of their prompts, usually.
    """
    row_of = {name: row for row, name in enumerate(dict.fromkeys(clusters))}
    values = np.array([mean.values for mean in means.values()], dtype=np.float64)
    values = values.reshape(len(means), len(clusters)).T
    sums = np.zeros((len(row_of), 2 * len(means)))
    rows = np.array([row_of[name] for name in clusters], dtype=np.intp)
    np.add.at(sums, rows, pairs_of(values).reshape(len(clusters), 2 * len(means)))
    single = np.max(sums, axis=0, initial=0) <= 1
    metrics = {
        name: Metric(
            partial(_mean, column),
            mean.better,
            outcomes=sums[:, column] > 0 if mean.yes_or_no and single[column + 1] else None,
            guard=mean.guard,
            trials=partial(_number, column) if mean.yes_or_no or mean.share else None,
        )
        for column, (name, mean) in zip(range(0, 2 * len(means), 2), means.items(), strict=True)
    }
    return Measurement(tuple(row_of), sums, metrics)


def _mean(column: int, sums: Array) -> Array:
    return quotient(sums[..., column], _number(column, sums))


def _number(column: int, sums: Array) -> Array:
    return sums[..., column + 1]
