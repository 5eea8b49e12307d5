"""Stored evaluations of two models, and the gate between them: what is read and what is refused."""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from environments.base import TRAIN_SPLIT, Message
from environments.contract import Environment
from environments.measurement import Measurement
from equipoise.evaluate.compare import (
    Checks,
    Entry,
    Evaluated,
    compared_entry,
    drawn_differently,
    read_stage,
    shared_items,
)
from equipoise.evaluate.plan import FILE, PlannedTask, read_audit
from equipoise.files.errors import UsageError
from equipoise.run.directory import RunDirectory, StoredConfig
from equipoise.run.job import BASELINE, FINAL
from equipoise.run.ledger import AuditRow, StageAccount
from equipoise.run.task import read_records
from equipoise.statistics.gate import (
    LEAST_CLUSTERS,
    SETTINGS,
    GatedMetric,
    GatedTask,
    GateResult,
    Spread,
    Watched,
    gate,
    times_needed,
)
from equipoise.statistics.seeds import ComparedPair, EntriesComparison

_TOGETHER = (
    "Evaluate both models at once, then name the rows of that audit:\n"
    "  equipoise evaluate all --model before=MODEL --model after=MODEL --run-name NAME\n"
    "  equipoise gate results/audits/NAME:before results/audits/NAME:after"
)

#: Metric, or task and metric -> how far it may move.
Margins = Mapping[tuple[str, str], float]


def read_margins(words: Sequence[str]) -> dict[tuple[str, str], float]:
    """Read NAME=VALUE and TASK/NAME=VALUE; the task is empty for all. Raises `UsageError`."""
    margins = {}
    for word in words:
        name, _, text = word.partition("=")
        task, _, metric = name.rpartition("/")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not metric or not 0 < value < math.inf:
            raise UsageError(
                "gate.invalid-margin",
                f"--margin {word} is not a margin",
                "Write NAME=VALUE, such as parse_rate=0.02.",
            )
        margins[task, metric] = value
    return margins


def gate_stored(before: str, after: str, margins: Margins) -> GateResult:
    """Gate two stored evaluations. Raises `UsageError` for what cannot be paired."""
    folders = stages_of(before), stages_of(after)
    shared = {
        task: (path, counterpart)
        for task, path in folders[0].items()
        if (counterpart := folders[1].get(task))
    }
    if not shared:
        names = [", ".join(sorted(side)) for side in folders]
        raise UsageError(
            "gate.no-common-task",
            f"{before} has the tasks {names[0]}, {after} has {names[1]}: none in common",
            _TOGETHER,
        )
    answered = {task: _read_pair(paths) for task, paths in shared.items()}
    pairs = {task: _without_training_prompts(*pair) for task, pair in answered.items()}
    watched = {
        task: _watched(pair[0].environment(), _margins_of(task, margins))
        for task, pair in pairs.items()
    }
    metrics = _gated(pairs, watched)
    _refuse_unknown(margins, metrics)
    missing = {
        task: after if task in folders[0] else before
        for task in (folders[0].keys() | folders[1].keys()) - shared.keys()
    }
    tasks = {
        task: GatedTask(
            before=first.path,
            after=second.path,
            prompts=len(first.items),
            replies=len(first.rollouts),
            left_out=len(answered[task][1].items) - len(second.items),
            objective=watched[task].objective,
            drawn_differently=tuple(drawn_differently(first, second)),
            metrics={name: m for (of_task, name), m in metrics.items() if of_task == task},
            presentation=watched[task].environment.presentation,
            sides=_sides(task, first, second),
        )
        for task, (first, second) in pairs.items()
    }
    return GateResult(before, after, tasks, dict(sorted(missing.items())))


def _sides(task: str, before: Evaluated, after: Evaluated) -> EntriesComparison:
    """Both sides as entries of a comparison without tests: the gate's own are the verdicts."""
    names = "the old model", "the new model"
    entries = [
        compared_entry(Entry(name, (side,)), SETTINGS, _measure_told)
        for name, side in zip(names, (before, after), strict=True)
    ]
    items, replies = (len(before.items),), ((len(before.rollouts), len(after.rollouts)),)
    pair = ComparedPair(*names, items, replies, (), own_references=(), metrics={})
    return EntriesComparison(task, SETTINGS.confidence, (), tuple(entries), (pair,))


def _measure_told(side: Evaluated, items: frozenset[str]) -> Measurement:
    """The metrics that a reader is told first; all of a task that names none."""
    measured, presentation = side.measured(items), side.loaded.environment_class.presentation
    names = [finding.metric for finding in presentation.findings]
    names += [chart.metric for chart in presentation.charts]
    metrics = {name: measured.metrics[name] for name in names if name in measured.metrics}
    return replace(measured, metrics=metrics or measured.metrics)


def _gated(
    pairs: Mapping[str, tuple[Evaluated, Evaluated]], watched: Mapping[str, Watched]
) -> dict[tuple[str, str], GatedMetric]:
    """Gate every metric of every task; measure the error again only where data are too few."""
    replies = {task: [(s.rollouts, s.scores) for s in pair] for task, pair in pairs.items()}
    comparisons = {task: watched[task].compare(*replies[task]) for task in pairs}
    metrics = gate(
        {
            (task, name): m
            for task, task_metrics in comparisons.items()
            for name, m in task_metrics.items()
        }
    )
    for task in {task for (task, _), metric in metrics.items() if metric.status == "inconclusive"}:
        with_errors = watched[task].with_errors(comparisons[task], replies[task][0])
        for name, metric in with_errors.items():
            metrics[task, name] = replace(metrics[task, name], comparison=metric.comparison)
    return metrics


# --- what is read --------------------------------------------------------------------------------


def stages_of(word: str) -> dict[str, Path]:
    """The folder of each task's evaluation: of an audit, of AUDIT:ROW, or of one run or stage."""
    path, _, row = word.rpartition(":") if not Path(word).exists() else (word, "", "")
    root = Path(path or word)
    if (root / FILE).is_file():
        named = [task for task in read_audit(root).tasks if not row or (root / task / row).is_dir()]
        if not named:
            raise UsageError(
                "gate.unknown-row",
                f"{root} has no row {row}",
                f"Name one of {', '.join(_rows(root))}.",
            )
        return {task: _row_of(root / task, row) for task in named}
    above = RunDirectory(root.parent)
    of_stage = root.name in (BASELINE, FINAL) and above.config.is_file()
    run = above if of_stage else RunDirectory(root)
    if row or not run.config.is_file():
        raise UsageError("gate.no-evaluation", f"{word} is not a stored evaluation", _TOGETHER)
    return {StoredConfig.of(run).task: root}


def _row_of(folder: Path, row: str) -> Path:
    if row:
        return folder / row
    rows = _rows(folder.parent)
    if len(rows) != 1:
        raise UsageError(
            "gate.several-rows",
            f"{folder.parent} has {len(rows)} rows: {', '.join(rows)}",
            f"Name one: {folder.parent}:{rows[0]}." if rows else _TOGETHER,
        )
    return folder / rows[0]


def _rows(root: Path) -> list[str]:
    """The rows of an audit, of all its tasks."""
    folders = [root / task for task in read_audit(root).tasks]
    return sorted({p.parent.name for f in folders for p in f.glob("*/config.yaml")})


def _read_pair(folders: tuple[Path, Path]) -> tuple[Evaluated, Evaluated]:
    before, after = (read_stage(folder) for folder in folders)
    try:
        shared_items(before, after, Checks())
    except UsageError as error:
        raise UsageError(error.code, error.message, _TOGETHER) from None
    first, second = (Counter(r.prompt_id for r in side.rollouts) for side in (before, after))
    if differing := sorted(name for name in first if first[name] != second[name]):
        name = differing[0]
        raise UsageError(
            "gate.uneven-replies",
            f"{before.path} and {after.path} do not have the same number of replies to "
            f"{len(differing):,} prompts: {first[name]} and {second[name]} to {name!r}",
            _TOGETHER,
        )
    return before, after


def _without_training_prompts(before: Evaluated, after: Evaluated) -> tuple[Evaluated, Evaluated]:
    """Leave out the sets of which the run that trained a model had a prompt to train on.

    Splits depend on the seed, so the test of one run may be what another one was trained on.
    Raises `UsageError` where no set is left.
    """
    run = _trained_in(after)
    if run is None:
        return before, after
    trained = {_text(r.messages) for r in read_records(run.prompts) if r.split == TRAIN_SPLIT}
    prompts = [r for r in read_records(after.run.prompts) if r.id in after.items]
    overlap = [record for record in prompts if _text(record.messages) in trained]
    sets = {record.set_id for record in overlap}
    unseen = frozenset(record.id for record in prompts if record.set_id not in sets)
    if not unseen:
        raise UsageError(
            "gate.trained-prompts",
            f"{run.root} was trained on {len(overlap):,} of the {len(prompts):,} prompts of "
            f"{after.path}, such as {overlap[0].id!r}",
            f"Evaluate both models with that run's configuration: --config {run.config}.",
        )
    return before.only(unseen), after.only(unseen)


def _trained_in(after: Evaluated) -> RunDirectory | None:
    """The run that a model was trained in, where it is still there."""
    if after.stage == FINAL:
        return after.run
    subject = (after.provenance.audit or AuditRow()).subject
    named = [Path(word) for word in (subject.model, subject.adapter) if word]
    runs = [RunDirectory(folder) for path in named for folder in (path, *path.parents)]
    return next((run for run in runs if run.config.is_file() and run.prompts.is_file()), None)


def _text(messages: Sequence[Message]) -> str:
    return json.dumps(messages, sort_keys=True)


# --- plan -----------------------------------------------------------------------------------------
# How many prompts and replies let an unchanged model pass.


_SHIPPED = Path(__file__).with_name("spreads.json")
#: How often an unchanged model is to pass, in all metrics of all tasks.
PASSES = 0.8


@dataclass(frozen=True, slots=True)
class Spreads:
    """A task's evaluation of one model, as a plan needs it.

    `replies` and `reference` are to each prompt, `tokens` and `seconds` of a reply.
    """

    prompts: int
    replies: int
    reference: int
    tokens: float
    seconds: float
    metrics: Mapping[str, Spread | None]


def plan_gate(word: str | None, margins: Margins) -> dict[str, PlannedTask]:
    """Plan the evaluations of a gate from a stored one, or from our local models' of a task or all.

    Each of several tasks must pass more often than all of them together.
    """
    tasks = shipped_spreads()
    if word in tasks and not Path(word).exists():
        tasks = {word: tasks[word]}
    elif word not in (None, "all"):
        stored = stages_of(word).items()
        tasks = {task: measure_spreads(folder, task, margins) for task, folder in stored}
    names = {(task, name): None for task, spreads in tasks.items() for name in spreads.metrics}
    _refuse_unknown(margins, names)
    power = PASSES ** (1 / len(tasks))
    return {task: _planned(s, _margins_of(task, margins), power) for task, s in tasks.items()}


def shipped_spreads() -> dict[str, Spreads]:
    return TypeAdapter(dict[str, Spreads]).validate_json(_SHIPPED.read_bytes())


def measure_spreads(folder: Path, task: str, margins: Margins) -> Spreads:
    """Read a stored evaluation. Raises `EquipoiseError` like `read_stage`."""
    stage = read_stage(folder)
    replies = stage.rollouts, stage.scores
    watched = _watched(stage.environment(), _margins_of(task, margins))
    metrics = watched.with_errors(watched.compare(replies, replies), replies)
    account = stage.provenance.generation.get(stage.stage, StageAccount())
    number = len(stage.rollouts)
    return Spreads(
        prompts=len(stage.items),
        replies=round(number / len(stage.items)),
        reference=stage.loaded.env_settings.reference_size,
        tokens=account.completion_tokens / number,
        seconds=account.generation_time_seconds / number,
        metrics={name: metric.spread for name, metric in metrics.items()},
    )


def _planned(spreads: Spreads, margins: Mapping[str, float], power: float) -> PlannedTask:
    known = {
        name: replace(spread, by=margins.get(name, spread.by))
        for name, spread in spreads.metrics.items()
        if spread
    }
    times = times_needed(known.values(), power)
    needed = spreads.prompts * spreads.replies * times
    share = max((LEAST_CLUSTERS / spread.clusters for spread in known.values()), default=1.0)
    prompts = math.ceil(max(min(spreads.prompts, needed), share * spreads.prompts))
    replies = math.ceil(needed / prompts)
    total = prompts * (replies + spreads.reference)
    return PlannedTask(
        prompts=prompts,
        replies=replies,
        total=total,
        tokens=round(total * spreads.tokens),
        seconds=total * spreads.seconds,
        decisive=min(known, key=lambda name: known[name].power(times), default=""),
        unknown=tuple(name for name, spread in spreads.metrics.items() if spread is None),
    )


# --- margins -------------------------------------------------------------------------------------


def _margins_of(task: str, margins: Margins) -> dict[str, float]:
    """Take the margins for all tasks, and those of this one, which win."""
    return {
        metric: value
        for scope in ("", task)
        for (named, metric), value in margins.items()
        if named == scope
    }


def _watched(environment: Environment, margins: Mapping[str, float]) -> Watched:
    """Raise `UsageError` where nothing says by how much the objective may be worse."""
    name, objective = environment.name, environment.objective
    if environment.margin() is None and objective not in margins:
        raise UsageError(
            "gate.no-objective-margin",
            f"the task {name} does not say how much worse its {objective} may be",
            f"Say it with --margin {name}/{objective}=VALUE.",
        )
    return Watched(environment, margins)


def _refuse_unknown(margins: Margins, metrics: Collection[tuple[str, str]]) -> None:
    for task, name in margins:
        if not any(metric == name and task in ("", metric_task) for metric_task, metric in metrics):
            names = ", ".join(
                sorted({metric for metric_task, metric in metrics if task in ("", metric_task)})
            )
            raise UsageError(
                "gate.unknown-metric",
                f"no metric {name} is compared{f' of {task}' if task else ''}",
                f"These are: {names}.",
            )
