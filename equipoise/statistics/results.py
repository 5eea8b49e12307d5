"""Results of a comparison of evaluations and of a gate: compare.json and the basis of gate.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from environments.presentation import Presentation
from equipoise.statistics.compare import MetricComparison
from equipoise.statistics.evaluation import Figures
from equipoise.statistics.gate import GatedMetric, Verdict, verdict_of

#: Values of so many characters are shown beside the name of what differs.
_LONGEST_VALUES = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that decides a reply, by name, and its value on both sides."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        values = f"{self.first} and {self.second}"
        return f"{self.name} {values}" if len(values) <= _LONGEST_VALUES else self.name


@dataclass(frozen=True, slots=True)
class ComparedEntry:
    """A row of a comparison: one run, or the runs of several seeds of one configuration."""

    name: str
    runs: tuple[str, ...]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    variants: tuple[Mapping[str, object], ...]
    stand_ins: tuple[str, ...]
    n_rollouts: int
    n_failed: int
    metrics: Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """The first entry against another one.

    `items` and `replies` are of each pair of runs. With `other_reference` one side is held against
    the plain replies of its model and one against its own; `own_references` are metrics that are
    distances from two references.
    """

    first: str
    second: str
    items: tuple[int, ...]
    replies: tuple[tuple[int, int], ...]
    drawn_differently: tuple[Difference, ...]
    other_reference: bool
    own_references: tuple[str, ...]
    metrics: Mapping[str, MetricComparison]


@dataclass(frozen=True, slots=True)
class EntriesComparison:
    """The content of compare.json; `allowed` names the differences that the user allows."""

    schema: int = field(default=1, init=False)
    task: str
    confidence: float
    allowed: tuple[str, ...]
    entries: tuple[ComparedEntry, ...]
    comparisons: tuple[ComparedPair, ...]


@dataclass(frozen=True, slots=True)
class GatedTask:
    """One task that both sides have, `before` and `after` being the folders of its evaluations.

    `left_out` counts the prompts that the model was trained on, or that are of one set with such a
    prompt.
    """

    before: str
    after: str
    prompts: int
    replies: int
    left_out: int
    objective: str
    drawn_differently: tuple[Difference, ...]
    metrics: Mapping[str, GatedMetric]
    presentation: Presentation

    def prompts_needed(self, metric: str) -> int | None:
        """About how many would show that the metric is kept, if nothing changed."""
        times = self.metrics[metric].metric.times
        if times is None:
            return None
        needed = times * self.prompts
        # Rounded up to two significant digits: it is an estimate.
        step = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
        return math.ceil(needed / step) * step


@dataclass(frozen=True, slots=True)
class GateResult:
    """A gate between two sides; `missing` are tasks of one side alone, with the side's name."""

    before: str
    after: str
    tasks: Mapping[str, GatedTask]
    missing: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all tasks: a task that one side lacks is inconclusive."""
        verdict = verdict_of(m for task in self.tasks.values() for m in task.metrics.values())
        return "not enough data" if verdict == "passed" and self.missing else verdict
