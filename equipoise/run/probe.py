"""The probe of trivial baselines, before training, and what the trained model adds to them.

The constant reply is searched on training prompts; every baseline is measured on the evaluation
split, as the untrained and the trained model are. `probe/` in the run directory has the scored
replies of each and probe.json with their figures; modes.json sets them against the trained model.
The untrained model's likeliest replies are set against the trained model's: what sampling costs is
no lack of training.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from environments.base import REWARD, PromptRecord, Rollout
from environments.contract import Environment
from environments.measurement import Measurement
from environments.measurement import Modes as TaskModes
from equipoise.config import Config
from equipoise.config.schedule import BLINDED_GENERATIONS, PROBE_GENERATIONS, Workload
from equipoise.files.disk import seeded_digest, write_folder
from equipoise.run.directory import (
    GREEDY,
    Modes,
    Probe,
    RunDirectory,
    read_content,
    write_content,
)
from equipoise.run.job import (
    BASELINE,
    FINAL,
    Job,
    Sample,
    Scored,
    score_baseline,
    scores_of,
    statistics_settings,
)
from equipoise.run.rollouts import read_scored_rollouts, write_rollouts
from equipoise.run.seals import seal
from equipoise.statistics.compare import compare, with_verdicts
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.intervals import StatisticsSettings
from equipoise.statistics.trivial import (
    REFUSALS,
    TRIVIAL_BASELINES,
    Constant,
    Measured,
    Untrained,
    ahead,
    best_constant,
    commonest,
    differences,
    first_of_each,
    not_beaten,
)

PROBE, BLINDED, UNTRAINED = "probe", "blinded", "untrained"

_FIGURES = "probe.json"
#: Sentences that a constant reply is made longer by, and other replies that are tried as one.
_SENTENCES, _OTHER_CONSTANTS = 24, 16
#: Trivial baselines that are scored on the evaluation's prompts at most: those of every task, the
#: greedy and the blinded model, and three of the task's own, which retrieval has.
_BASELINES = len(TRIVIAL_BASELINES) + 2 + 3
#: The notes of the baselines for which the untrained model writes.
_NOTES = {
    UNTRAINED: "the model before training",
    GREEDY: "the untrained model at temperature 0",
    BLINDED: "the untrained model, with what must not decide taken out of the prompt",
}


# --- before training -----------------------------------------------------------------------------


def probe(job: Job, frozen: Sample) -> None:
    """Search, sample, score and measure the baselines; nothing where that is done or not wanted.

    Raises `EquipoiseError` when too many replies of a baseline could not be scored.
    """
    settings = job.config.equipoise.probe
    if not settings.prompts or job.run.probe.exists():
        return
    with job.timed(PROBE):
        job.display.begin("Probe: what the reward pays for nothing")
        searched = training_sample(job.training_prompts, settings.prompts, job.config.grpo.seed)
        untrained = Untrained(
            job.evaluation_prompts,
            *read_scored_rollouts(job.run.rollouts(BASELINE)),
            job.loaded.env_settings.least_generations,
        )
        written = frozen(searched, PROBE_GENERATIONS, PROBE)
        drawn = _drawn(job, untrained, frozen)
        with job.display.progress("searching for the best constant reply"):
            untrained = replace(untrained, constants=_constants(job, written, untrained.copies))
        with job.display.progress("scoring trivial baselines"):
            baselines = _without_model(job, untrained) | drawn
            scored = {
                name: score_baseline(job, name, rollouts) for name, rollouts in baselines.items()
            }
        scored = {UNTRAINED: (untrained.rollouts, untrained.scores), **scored}
        with job.display.progress("measuring them"):
            measured = measure_probe(job, scored, untrained.constants)

    def fill(folder: Path) -> None:
        for name, (rollouts, scores) in scored.items():
            if name != UNTRAINED:  # which is in baseline/
                write_rollouts(folder / _file(name), rollouts, scores)
        write_content(folder / _FIGURES, measured)

    write_folder(job.run.probe, fill)
    seal(job.run, job.run.probe)
    job.show(PROBE, measured)


def training_sample(records: Sequence[PromptRecord], number: int, seed: int) -> list[PromptRecord]:
    """Choose at least `number` training prompts in whole sets, or all where there are fewer.

    A hash of this stage's own ranks them. By the hash that chose the task's prompts they would be
    the last ones, which are all of the kinds that were thinned out least.
    """
    by_set: dict[str, list[PromptRecord]] = {}
    for record in records:
        by_set.setdefault(record.set_id, []).append(record)
    names = sorted(by_set, key=lambda name: seeded_digest(seed, f"{PROBE} {name}"))
    subset: list[PromptRecord] = []
    while names and len(subset) < number:
        subset += by_set[names.pop()]
    return subset


def unsampled_replies(config: Config, workload: Workload) -> int:
    """Upper bound of the replies that the probe scores without generating them."""
    settings = config.equipoise.probe
    if not settings.prompts:
        return 0
    tried = settings.constants + _OTHER_CONSTANTS + settings.rounds * _SENTENCES
    evaluated = workload.prompts.get(config.equipoise.evaluation.split, 0)
    return tried * settings.prompts + _BASELINES * evaluated


def _constants(job: Job, written: Sequence[Rollout], copies: int) -> dict[str, Constant]:
    """Find the best constant reply and the best way to decline on the prompts of `written`.

    The objective decides; the reward does where no reply has an objective, as before a model has
    learnt the form of a reply.
    """
    environment, settings = job.environment, job.config.equipoise.probe
    replies = commonest((rollout.completion for rollout in written), settings.constants)
    prompts = list(first_of_each(written, copies))
    candidates = list(dict.fromkeys((*environment.constant_replies(), *replies, *REFUSALS)))
    # Refusals are tried by both searches.
    worth = cache(partial(_worth, environment, prompts, environment.objective))
    if not any(math.isfinite(worth(reply)) for reply in candidates):
        worth = cache(partial(_worth, environment, prompts, REWARD))
    return {
        "constant": best_constant(worth, candidates, settings.rounds, _SENTENCES),
        "always_refuse": best_constant(worth, REFUSALS, 0),
    }


def _worth(environment: Environment, prompts: Sequence[Rollout], figure: str, reply: str) -> float:
    rollouts = [replace(rollout, completion=reply) for rollout in prompts]
    return Measured.of(environment, rollouts, scores_of(environment, rollouts)).worth(figure)


def _drawn(job: Job, untrained: Untrained, frozen: Sample) -> dict[str, list[Rollout]]:
    """The baselines for which the untrained model writes."""
    environment = job.environment
    replies = {r.prompt_id: r.completion for r in frozen(untrained.records, 1, GREEDY)}
    drawn = {GREEDY: untrained.replying(replies)}
    if environment.offers(Environment.blinded):
        blind = [replace(r, messages=environment.blinded(r)) for r in untrained.records]
        number = min(job.config.equipoise.evaluation.generations, BLINDED_GENERATIONS)
        drawn[BLINDED] = frozen(blind, number, BLINDED)
    return drawn


def _without_model(job: Job, untrained: Untrained) -> dict[str, list[Rollout]]:
    """The baselines for which no model writes, those of the task last."""
    baselines = {
        baseline.name: untrained.replying(baseline.reply(untrained))
        for baseline in TRIVIAL_BASELINES
    }
    task_baselines = job.environment.trivial_replies(untrained.rollouts, job.config.grpo.seed)
    for name, completions in task_baselines.items():
        pairs = zip(untrained.rollouts, completions, strict=True)
        baselines[name] = [replace(rollout, completion=reply) for rollout, reply in pairs]
    return baselines


def measure_probe(
    job: Job, scored: Mapping[str, Scored], constants: Mapping[str, Constant]
) -> Probe:
    """Measure the baselines; the untrained model is the first of them."""
    settings = statistics_settings(job.config)
    measured = {name: Measured.of(job.environment, *pair) for name, pair in scored.items()}
    figures = {name: measurement.figures(settings) for name, measurement in measured.items()}
    independent = {
        baseline.name: measured[baseline.name] for baseline in TRIVIAL_BASELINES if baseline.blind
    }
    notes = _NOTES | {baseline.name: baseline.note for baseline in TRIVIAL_BASELINES}
    objective, metric = measured[UNTRAINED].compared
    return Probe.model_validate(
        {
            "schema": 1,
            "confidence": settings.confidence,
            "objective": objective,
            "metric": metric,
            "constants": {name: asdict(constant) for name, constant in constants.items()},
            "ahead": ahead(differences(independent, measured[UNTRAINED], settings), objective),
            "baselines": {n: {"note": notes.get(n, ""), "metrics": f} for n, f in figures.items()},
        }
    )


# --- after training ------------------------------------------------------------------------------


def compare_with_trained(
    run: RunDirectory, environment: Environment, settings: StatisticsSettings
) -> Probe | None:
    """Return the probe, with each baseline against the trained model; None without a probe.

    A difference is the trained model's figure minus the baseline's; `greedy` is compared with the
    trained model's likeliest replies.
    """
    before = read_content(run.probe / _FIGURES, Probe)
    if before is None:
        return None

    def measured(path: Path) -> Measured:
        return Measured.of(environment, *read_scored_rollouts(path))

    trained = measured(run.rollouts(FINAL))
    baselines = {
        name: measured(run.rollouts(BASELINE) if name == UNTRAINED else run.probe / _file(name))
        for name in before.baselines
    }
    likeliest = measured(run.greedy)
    against = differences(baselines, trained, settings, {GREEDY: likeliest})
    results = before.baselines.items()
    return Probe.model_validate(
        {
            **dict(before),
            "baselines": {n: r.model_copy(update={"against": against[n]}) for n, r in results},
            "trained": trained.figures(settings),
            "trained_greedy": likeliest.figures(settings),
            "not_beaten": not_beaten(against, before.objective),
        }
    )


def _file(baseline: str) -> str:
    """A task may call a baseline what it likes."""
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', baseline)}.jsonl"


# --- modes ----------------------------------------------------------------------------------------


MODES = "modes"


def write_modes(job: Job) -> None:
    """Write modes.json, and say which trivial baselines the trained model does not beat."""
    if job.run.modes.exists():
        return
    settings = statistics_settings(job.config)
    with job.display.progress("comparing with trivial baselines"):
        trivial = compare_with_trained(job.run, job.environment, settings)
    task_modes: dict[str, Any] = {}
    if job.environment.offers(Environment.modes):
        scored = {s: read_scored_rollouts(job.run.rollouts(s)) for s in (BASELINE, FINAL)}
        with job.timed(MODES), job.display.progress("answering in other ways"):
            modes, measure = job.environment.modes(scored[FINAL][0]), job.environment.measure
            stages = {name: measure(*scored[stage]) for stage, name in modes.stages.items()}
            task_modes = modes_dict(modes, stages, settings)
    if not (trivial or task_modes):
        return
    fields = {"schema": 2, "confidence": settings.confidence, **task_modes, "trivial": trivial}
    content = Modes.model_validate(fields)
    write_content(job.run.modes, content)
    seal(job.run, job.run.modes)
    job.show(MODES, content)


def modes_dict(
    modes: TaskModes, stages: Mapping[str, Measurement], settings: StatisticsSettings
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
