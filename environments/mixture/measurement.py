"""The measurements of a mixture's tasks, as one.

The sums of a task are 0 in the clusters of the others, and its metrics see its own columns alone.
Each task is a stratum of its own, or several: it is resampled as it is alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from environments.base import REWARD
from environments.contract import Environment
from environments.measurement import Array, Direction, Margin, Measurement, Metric
from environments.presentation import Presentation, Words

# --- presentation ---------------------------------------------------------------------------------
# The words of a mixture: those of its tasks, each with the name of its task before it.


def presentation_of(tasks: Mapping[str, Environment], mean: str) -> Presentation:
    """The words of all tasks; examples are chosen from each of them."""
    words = {
        mean: Words(
            "mean objective",
            "mean over the tasks of their objectives, each in its margins; more is better",
        )
    }
    for name, task in tasks.items():
        task_words = {REWARD: Words("reward", "before it is scaled"), **task.presentation.words}
        words |= {
            f"{name}.{key}": Words(f"{name}: {entry.label}", entry.note)
            for key, entry in task_words.items()
        }
    return Presentation(title="A mixture of tasks", words=words, one_of_each="task")


# --- measurement ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric by which a task's policies are compared, and its margin."""

    metric: str
    margin: float


@dataclass(frozen=True, slots=True)
class TaskPart:
    """A measurement of one task; a task may have several, each over clusters of its own."""

    task: str
    measured: Measurement


@dataclass(frozen=True, slots=True)
class _Block:
    """The rows and the columns of a part in the sums of all; `floors`: it has a null."""

    rows: slice
    columns: slice
    names: tuple[str, ...]  # of all clusters
    floors: bool

    def metric(self, metric: Metric) -> Metric:
        """The metric, of the sums of all."""
        outcomes = None
        if metric.outcomes is not None:
            outcomes = np.zeros(len(self.names), dtype=np.bool_)
            outcomes[self.rows] = metric.outcomes
        return replace(
            metric,
            of_sums=self._of_columns(metric.of_sums),
            trials=self._of_columns(metric.trials) if metric.trials else None,
            outcomes=outcomes,
            floor=metric.floor and self.floors,
            clusters=frozenset(self.names[self.rows]),
        )

    def _of_columns(self, function: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return lambda sums: function(sums[..., self.columns])


def joined(
    parts: Sequence[TaskPart], objectives: Mapping[str, Objective], mean: str
) -> Measurement:
    """Measure all parts; the metric `mean` is the first, the others are `<task>.<metric>`.

    The mean is that of the tasks' objectives, each in its margins and turned so that more is
    better; it is not defined while one of them is not. Each objective is guarded by its margin.
    """
    parts = [replace(part, measured=_one_row_each(part.measured)) for part in parts]
    blocks = _blocks(parts)
    names = blocks[0].names if blocks else ()
    sums = np.zeros((len(names), blocks[-1].columns.stop if blocks else 0))
    metrics: dict[str, Metric] = {}
    breakdowns: dict[str, Mapping[str, Mapping[str, Metric]]] = {}
    for part, block in zip(parts, blocks, strict=True):
        sums[block.rows, block.columns] = part.measured.sums
        guarded, objective = dict(part.measured.metrics), objectives[part.task]
        if metric := guarded.get(objective.metric):
            margin = metric.guard or Margin(objective.margin)
            guarded[objective.metric] = replace(metric, guard=margin)
        metrics |= {f"{part.task}.{name}": block.metric(m) for name, m in guarded.items()}
        breakdowns |= {
            f"{part.task}.{section}": {
                key: {name: block.metric(m) for name, m in rows.items()}
                for key, rows in keys.items()
            }
            for section, keys in part.measured.breakdowns.items()
        }
    return Measurement(
        clusters=names,
        sums=sums,
        metrics={mean: _mean_objective(metrics, objectives), **metrics},
        breakdowns=breakdowns,
        null_sums=_null_sums(parts, blocks),
        strata=tuple(
            f"{number}/{stratum}"
            for number, part in enumerate(parts)
            for stratum in part.measured.strata or ("",) * len(part.measured.clusters)
        ),
    )


def _one_row_each(measured: Measurement) -> Measurement:
    """The measurement with the rows of a cluster added up: a yes or no is of one row in all."""
    names = list(dict.fromkeys(measured.clusters))
    if len(names) == len(measured.clusters):
        return measured
    row_of = {name: row for row, name in enumerate(names)}
    rows = [row_of[name] for name in measured.clusters]
    sums = np.zeros((len(names), measured.sums.shape[1]))
    np.add.at(sums, rows, measured.sums)
    stratum_of = dict(zip(measured.clusters, measured.strata or (), strict=False))
    strata = tuple(stratum_of[name] for name in names) if measured.strata else None
    return replace(measured, clusters=tuple(names), sums=sums, strata=strata)


def _blocks(parts: Sequence[TaskPart]) -> list[_Block]:
    # A name that two parts have is two clusters.
    names = tuple(
        f"{number}/{name}" for number, part in enumerate(parts) for name in part.measured.clusters
    )
    rows = np.cumsum([0, *(len(part.measured.clusters) for part in parts)]).tolist()
    columns = np.cumsum([0, *(part.measured.sums.shape[1] for part in parts)]).tolist()
    return [
        _Block(
            slice(rows[n], rows[n + 1]),
            slice(columns[n], columns[n + 1]),
            names,
            part.measured.null_sums is not None,
        )
        for n, part in enumerate(parts)
    ]


def _mean_objective(metrics: Mapping[str, Metric], objectives: Mapping[str, Objective]) -> Metric:
    signs: dict[Direction | None, float] = {"higher": 1.0, "lower": -1.0}
    terms = [
        (metrics.get(f"{task}.{objective.metric}"), objective.margin)
        for task, objective in objectives.items()
    ]

    def mean(sums: Array) -> Array:
        undefined = np.full(np.shape(sums)[:-1], np.nan)
        values = [
            signs[metric.better] * metric.of_sums(sums) / margin if metric else undefined
            for metric, margin in terms
        ]
        return np.asarray(np.mean(values, axis=0))

    return Metric(mean, better="higher")


def _null_sums(
    parts: Sequence[TaskPart], blocks: Sequence[_Block]
) -> Callable[[np.random.Generator, int], Array] | None:
    nulls = [
        (part.measured.null_sums, block)
        for part, block in zip(parts, blocks, strict=True)
        if part.measured.null_sums
    ]
    if not nulls:
        return None

    def null_sums(rng: np.random.Generator, draws: int) -> Array:
        sums = np.full((draws, blocks[-1].columns.stop), np.nan)
        for of_part, block in nulls:
            sums[:, block.columns] = of_part(rng, draws)
        return sums

    return null_sums
