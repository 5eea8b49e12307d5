"""A comparison of entries: the first against each of the others, metric by metric, in pairs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

from environments.measurement import Measurement, Metric
from equipoise.evaluate.entries import Checks, Entry, Evaluated, drawn_differently, shared_items
from equipoise.files.errors import UsageError
from equipoise.run.job import BASELINE
from equipoise.statistics.compare import (
    MetricComparison,
    compare,
    direction_of,
    with_verdicts,
)
from equipoise.statistics.evaluation import Figures, headline_figures
from equipoise.statistics.intervals import Interval, StatisticsSettings
from equipoise.statistics.seeds import (
    ComparedEntry,
    ComparedPair,
    EntriesComparison,
    compare_over_seeds,
    over_seeds,
)

#: What a run's scores measure on these prompts.
Measure = Callable[[Evaluated, frozenset[str]], Measurement]


@dataclass(frozen=True, slots=True)
class Pair:
    """The first entry and another one: pairs of their runs on the items that both have."""

    first: Entry
    second: Entry
    runs: tuple[tuple[Evaluated, Evaluated], ...]
    items: tuple[frozenset[str], ...]

    @property
    def same_items(self) -> bool:
        return len(set(self.items)) == 1

    @property
    def other_reference(self) -> bool:
        """Whether one is held against the plain replies of its model, and one against its own."""
        return any(first.own_reference != second.own_reference for first, second in self.runs)

    @property
    def two_references(self) -> bool:
        return any(first.reference_hash != second.reference_hash for first, second in self.runs)

    @property
    def frozen(self) -> bool:
        """Whether one is a frozen model, whose distance from its own reference is 0 by making."""
        return any(BASELINE in (first.stage, second.stage) for first, second in self.runs)


def compare_entries(entries: Sequence[Entry], checks: Checks) -> EntriesComparison:
    """Compare the first with each other one. Raises `UsageError` for what cannot be compared.

    Holm's correction is over all metrics of all pairs.
    """
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise UsageError(
            "compare.repeated-name",
            f"two entries have one name: {', '.join(names)}",
            "Name them: NAME=DIR.",
        )
    first = entries[0]
    pairs = [_pair(first, second, checks) for second in entries[1:]]
    config = first.runs[0].loaded.config
    settings = config.equipoise.evaluation.statistics
    measured = cache(Evaluated.measured)  # the first entry is in every pair
    compared_entries = tuple(_entry(entry, settings, measured) for entry in entries)
    uncorrected = [_compared(pair, settings, measured) for pair in pairs]
    corrected = _correct(uncorrected, settings)
    return EntriesComparison(
        task=first.runs[0].loaded.environment_class.name,
        confidence=settings.confidence,
        allowed=tuple(name for name, allowed in asdict(checks).items() if allowed),
        entries=compared_entries,
        comparisons=tuple(map(_compared_pair, pairs, uncorrected, corrected)),
    )


def _entry(entry: Entry, settings: StatisticsSettings, measured: Measure) -> ComparedEntry:
    runs = entry.runs
    audits = [run.provenance.audit for run in runs]
    return ComparedEntry(
        name=entry.name,
        runs=tuple(run.path for run in runs),
        models=tuple(sorted({run.provenance.model for run in runs})),
        seeds=tuple(run.seed for run in runs),
        variants=tuple(asdict(audit.variant) for audit in audits if audit),
        stand_ins=tuple(sorted({run.stand_in for run in runs if run.stand_in})),
        n_rollouts=sum(len(run.rollouts) for run in runs),
        n_failed=sum(score.error is not None for run in runs for score in run.scores),
        metrics=_figures(entry, settings, measured),
    )


def _compared_pair(
    pair: Pair, uncorrected: "_Uncorrected", metrics: Mapping[str, MetricComparison]
) -> ComparedPair:
    differing = (d for first, second in pair.runs for d in drawn_differently(first, second))
    runs_and_items = zip(pair.runs, pair.items, strict=True)
    of_references = [n for n in metrics if uncorrected.metrics[n].of_reference]
    return ComparedPair(
        first=pair.first.name,
        second=pair.second.name,
        items=tuple(map(len, pair.items)),
        replies=tuple((a.replies(items), b.replies(items)) for (a, b), items in runs_and_items),
        drawn_differently=tuple(dict.fromkeys(differing)),
        other_reference=pair.other_reference,
        own_references=tuple(of_references) if pair.two_references else (),
        metrics=metrics,
    )


def _pair(first: Entry, second: Entry, checks: Checks) -> Pair:
    """The runs of both in pairs, seed by seed; a single run stands for every seed."""
    first_runs, second_runs = first.runs, second.runs
    if len(first_runs) == 1:
        first_runs *= len(second_runs)
    if len(second_runs) == 1:
        second_runs *= len(first_runs)
    if len(first_runs) != len(second_runs):
        raise UsageError(
            "compare.uneven-runs",
            f"{first.name} has {len(first_runs)} runs and {second.name} {len(second_runs)}",
            "Give as many seeds of each, or one run of one of them.",
        )
    runs = tuple(zip(first_runs, second_runs, strict=True))
    return Pair(first, second, runs, tuple(shared_items(*pair, checks) for pair in runs))


def _figures(entry: Entry, settings: StatisticsSettings, measured: Measure) -> dict[str, Figures]:
    """The metrics of one run, or their means over seeds, each with its interval."""
    # Without breakdowns, so that nothing else is resampled.
    run_figures = [
        headline_figures(replace(measured(run, frozenset(run.items)), breakdowns={}), settings)
        for run in entry.runs
    ]
    if len(run_figures) == 1:
        return run_figures[0]
    same_items = len({frozenset(run.items.items()) for run in entry.runs}) == 1
    return {
        name: _mean_figures([run[name] for run in run_figures], settings, same_items=same_items)
        for name in run_figures[0]
    }


def _mean_figures(
    figures: Sequence[Figures], settings: StatisticsSettings, *, same_items: bool
) -> Figures:
    values = [f["value"] for f in figures]
    numbers = [value for value in values if value is not None]
    bounds = [
        Interval(low, high)
        for f in figures
        if (low := f["low"]) is not None and (high := f["high"]) is not None
    ]
    if len(numbers) < len(values) or len(bounds) < len(values):
        return {"value": None, "low": None, "high": None}
    summary = over_seeds(numbers, bounds, confidence=settings.confidence, same_items=same_items)
    assert summary.interval is not None
    ends = {"low": summary.interval.low, "high": summary.interval.high}
    return {"value": summary.mean, **ends, "least": summary.least, "greatest": summary.greatest}


@dataclass(frozen=True, slots=True)
class _Uncorrected:
    metrics: Mapping[str, Metric]
    comparisons: Mapping[str, MetricComparison]
    frozen: bool


def _compared(pair: Pair, settings: StatisticsSettings, measured: Measure) -> _Uncorrected:
    """Compare a pair in every metric, without a correction over all pairs."""
    runs = zip(pair.runs, pair.items, strict=True)
    both = [(measured(first, items), measured(second, items)) for (first, second), items in runs]
    halves = [first.halves(items) for (first, _), items in zip(pair.runs, pair.items, strict=True)]
    run_comparisons = [
        compare(*stages, settings, halves=parts) for stages, parts in zip(both, halves, strict=True)
    ]
    metrics = both[0][0].metrics
    if pair.other_reference:  # a model that is held against itself has 0 there
        run_comparisons = [
            {name: c for name, c in comparisons.items() if not metrics[name].zero_if_frozen}
            for comparisons in run_comparisons
        ]
    pooled, same_items = run_comparisons[0], pair.same_items
    if len(run_comparisons) > 1:
        pooled = {
            name: compare_over_seeds(
                metrics[name],
                [comparisons[name] for comparisons in run_comparisons],
                confidence=settings.confidence,
                same_items=same_items,
            )
            for name in pooled
        }
    return _Uncorrected(metrics, pooled, pair.frozen)


def _correct(
    pairs: Sequence[_Uncorrected], settings: StatisticsSettings
) -> Iterator[dict[str, MetricComparison]]:
    """Holm's correction over all pairs, and what follows from it."""
    keyed = {
        (n, name): comparison
        for n, pair in enumerate(pairs)
        for name, comparison in pair.comparisons.items()
    }
    directions = {
        (n, name): direction_of(pairs[n].metrics[name], frozen=pairs[n].frozen) for n, name in keyed
    }
    corrected = with_verdicts(keyed, directions, settings)
    for n, pair in enumerate(pairs):
        yield {name: corrected[n, name] for name in pair.comparisons}
