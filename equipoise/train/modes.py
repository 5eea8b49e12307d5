"""modes.json: other ways through the prompts of the evaluation, beside the trained model's.

Those that the task knows are tested each against each; policies without skill, which every task
has, against the trained model.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from environments.contract import Environment
from environments.measurement import Measurement, Modes
from equipoise.files.disk import write_json
from equipoise.run.evaluation import BASELINE, FINAL
from equipoise.run.job import Job
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.run.seals import record_files
from equipoise.statistics.compare import compare, with_verdicts
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.intervals import StatisticsSettings
from equipoise.train.probe import compare_with_trained

SCHEMA = 2
MODES = "modes"


def write_modes(job: Job) -> None:
    """Write them, and say which policies without skill the trained model does not beat."""
    if job.run.modes.exists():
        return
    settings = job.config.equipoise.evaluation.statistics
    with job.reporter.progress("comparing with policies without skill"):
        trivial = compare_with_trained(job.run, job.environment, settings)
    task_modes: dict[str, Any] = {}
    if job.environment.offers(Environment.modes):
        scored = {s: read_scored_rollouts(job.run.rollouts(s)) for s in (BASELINE, FINAL)}
        with job.timed(MODES), job.reporter.progress("answering in other ways"):
            modes, measure = job.environment.modes(scored[FINAL][0]), job.environment.measure
            stages = {name: measure(*scored[stage]) for stage, name in modes.stages.items()}
            task_modes = modes_dict(modes, stages, settings)
    content = {
        "schema": SCHEMA,
        "confidence": settings.confidence,
        **task_modes,
        "trivial": dict(trivial),
    }
    if not trivial and not content.get("modes"):
        return
    write_json(job.run.modes, content)
    record_files(job.run, job.run.modes)
    job.show(MODES, content)


def modes_dict(
    modes: Modes, stages: Mapping[str, Measurement], settings: StatisticsSettings
) -> dict[str, Any]:
    """The task's own modes in modes.json; `stages` are the measured stages by their name there.

    All are compared pairwise in the first metric of the first mode, on the clusters that both have,
    by McNemar's test where the metric has outcomes; Holm's correction is over all pairs.
    """
    measured = {**modes.measured, **stages}
    metric = next(iter(next(iter(measured.values())).metrics))
    return {
        "modes": {name: headline_figures(mode, settings) for name, mode in measured.items()},
        "metric": metric,
        "comparisons": _comparisons(measured, metric, settings),
        "seconds": dict(modes.seconds),
        "sources": dict(modes.sources),
        "notes": list(modes.notes),
    }


def _comparisons(
    measured: Mapping[str, Measurement], metric: str, settings: StatisticsSettings
) -> list[dict[str, Any]]:
    # With one metric and no breakdown, so that nothing else is resampled.
    alone = {
        name: replace(mode, metrics={metric: mode.metrics[metric]}, breakdowns={}, null_sums=None)
        for name, mode in measured.items()
    }
    pairs = {
        (first, second): compare(alone[first], alone[second], settings)[metric]
        for first, second in itertools.combinations(alone, 2)
    }
    named = {f"{first} / {second}": pairs[first, second] for first, second in pairs}
    better = next(iter(measured.values())).metrics[metric].better
    corrected = with_verdicts(named, dict.fromkeys(named, better), settings).values()
    return [
        {"modes": list(pair), **asdict(comparison)}
        for pair, comparison in zip(pairs, corrected, strict=True)
    ]
