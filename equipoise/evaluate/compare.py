"""Evaluated stages of runs, read as they were scored: which may be compared, and how they differ.

The first entry is compared with each of the others, metric by metric, in pairs.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from environments.base import Rollout, Score
from environments.chat.accounting import MODEL
from environments.contract import Environment
from environments.measurement import Measurement, Metric
from equipoise.config import LoadedConfig
from equipoise.config.compose import differing_keys, leaves, value_at
from equipoise.config.validate import SEPARATOR
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory, load_stored
from equipoise.run.job import BASELINE, FINAL, REFERENCE, statistics_settings
from equipoise.run.ledger import CHAT_TEMPLATE, AuditRow, Provenance
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts
from equipoise.run.seals import open_run
from equipoise.run.task import make_environment, read_records
from equipoise.statistics.compare import (
    Halves,
    MetricComparison,
    compare,
    direction_of,
    with_verdicts,
)
from equipoise.statistics.evaluation import estimates_of
from equipoise.statistics.intervals import StatisticsSettings
from equipoise.statistics.seeds import (
    ComparedEntry,
    ComparedPair,
    Difference,
    EntriesComparison,
    compare_over_seeds,
    mean_estimate,
)

_STAGES = (FINAL, BASELINE)
#: Parts of keys below `env` that decide how a judge is reached, and no score.
_NOT_SCORING = frozenset({"url", "api_key_env", "limits", "budget", "cache_dir"})
#: Keys that decide how replies are drawn.
_SAMPLING = ("temperature", "top_p", "top_k", "max_new_tokens")
_DRAWING = ("equipoise.evaluation.seed", *(f"policy.generation.{name}" for name in _SAMPLING))
#: Those that decide it of a model in this process or NeMo-RL's.
_LOADING = ("policy.precision", "policy.tokenizer.chat_template_kwargs", "equipoise.load_in_4bit")
#: Keys in which the runs of one configuration may differ, and no others.
_SEED_KEYS = frozenset(
    {
        *("grpo.seed", "equipoise.data.seed", "equipoise.local_model.seed"),
        *("equipoise.evaluation.seed", "equipoise.output_dir", "equipoise.run_name"),
        *("equipoise.cache_dir", "equipoise.threads"),
    }
)


@dataclass(frozen=True, slots=True)
class Checks:
    """The differences between entries that the user allows."""

    different_items: bool = False
    different_environments: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """One stage of a run: what was replied, and how it was scored then. Equal to itself alone."""

    run: RunDirectory
    stage: str
    loaded: LoadedConfig
    items: Mapping[str, str]  # prompt id -> hash of its record
    rollouts: Sequence[Rollout]
    scores: Sequence[Score]

    @property
    def provenance(self) -> Provenance:
        return self.run.ledger.read()

    @property
    def path(self) -> str:
        return str(self.run.root / self.stage)

    @property
    def seed(self) -> int:
        return self.loaded.config.grpo.seed

    @property
    def caveats(self) -> list[str]:
        """Say what stood in for a model: a script that scored replies, the tiny local model."""
        return [*filter(None, (self.provenance.stand_in, self.provenance.local_model_notice))]

    def environment(self) -> Environment:
        """Build the run's environment, with its reference."""
        environment = make_environment(self.loaded.environment_class, self.loaded.env_settings)
        if environment.reference_generations and self.run.reference.exists():
            environment.set_reference(read_rollouts(self.run.reference))
        return environment

    def only(self, items: frozenset[str]) -> "Evaluated":
        """Keep these prompts alone."""
        rollouts, scores = self._replies_to(items)
        hashes = {name: value for name, value in self.items.items() if name in items}
        return replace(self, items=hashes, rollouts=rollouts, scores=scores)

    def measured(self, items: frozenset[str]) -> Measurement:
        return self.environment().measure(*self._replies_to(items))

    def halves(self, items: frozenset[str]) -> Halves | None:
        return Halves.of(self.environment().measure, *self._replies_to(items))

    def _replies_to(self, items: frozenset[str]) -> tuple[list[Rollout], list[Score]]:
        chosen = [n for n, rollout in enumerate(self.rollouts) if rollout.prompt_id in items]
        return [self.rollouts[n] for n in chosen], [self.scores[n] for n in chosen]

    def replies(self, items: frozenset[str]) -> int:
        return sum(rollout.prompt_id in items for rollout in self.rollouts)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a comparison: one run, or several seeds of one configuration."""

    name: str
    runs: tuple[Evaluated, ...]


def entries_of(words: Sequence[str]) -> list[Entry]:
    """Return an entry for each word.

    Of names that were not given, the stages of one run are `baseline` and `final`, and equal ones
    become paths.
    """
    entries = [entry_of(word) for word in words]
    stages = [entry.runs[0].stage for entry in entries]
    of_one_run = len({run.run.root.resolve() for entry in entries for run in entry.runs}) == 1
    if of_one_run and len(set(stages)) == len(words) and not any("=" in word for word in words):
        return [replace(e, name=stage) for e, stage in zip(entries, stages, strict=True)]
    names = [entry.name for entry in entries]
    return [
        replace(e, name=e.runs[0].path) if names.count(e.name) > 1 and "=" not in word else e
        for word, e in zip(words, entries, strict=True)
    ]


def entry_of(word: str) -> Entry:
    """Read `DIR`, `NAME=DIR` or `NAME=DIR,DIR,...`. Raises `EquipoiseError` like `open_run`."""
    name, equals, folders = word.partition("=")
    if not equals or "/" in name:
        name, folders = "", word
    runs = [read_stage(Path(part)) for part in folders.split(",") if part]
    if not runs:
        raise UsageError(
            "entry.no-name", f"{word!r} names no run", "Name folders: NAME=DIR or NAME=DIR,DIR."
        )
    for run in runs[1:]:
        keys = differing_keys(_made_by(runs[0]), _made_by(run)) - _SEED_KEYS
        if keys:
            raise UsageError(
                "entry.other-configuration",
                f"{run.path} is not another seed of {runs[0].path}: {', '.join(sorted(keys)[:5])}",
                "Give it as an entry of its own.",
            )
    if len({run.seed for run in runs}) < len(runs):
        raise UsageError(
            "entry.repeated-seed", "two runs of one entry have one seed", "Give each of them once."
        )
    root, stage = runs[0].run.root, runs[0].stage
    unnamed = f"{root.name} and {len(runs) - 1} more" if len(runs) > 1 else f"{root.name}/{stage}"
    return Entry(name or unnamed, tuple(sorted(runs, key=lambda run: run.seed)))


def read_stage(path: Path) -> Evaluated:
    """Read a stage's folder, or a run's last evaluated stage. Raises like `open_run`."""
    above = RunDirectory(path.parent)
    of_stage = path.name in _STAGES and (above.config.is_file() or above.provenance.is_file())
    run = open_run(path.parent if of_stage else path)
    candidates = (path.name,) if of_stage else _STAGES
    stages = [stage for stage in candidates if run.evaluation(stage).exists()]
    if not stages:
        raise UsageError(
            "entry.no-evaluation",
            f"{path} has nothing that was evaluated",
            "Name the folder of a run, results/<task>/<run name>, or of one of its stages, "
            ".../baseline or .../final.",
        )
    rollouts, scores = read_scored_rollouts(run.rollouts(stages[0]))
    prompt_ids = {rollout.prompt_id for rollout in rollouts}
    items = {}
    for record in read_records(run.prompts):
        if record.id in prompt_ids:  # what is asked and what is right, whatever the split
            content = json.dumps(asdict(record) | {"split": ""}, sort_keys=True)
            items[record.id] = hashlib.sha256(content.encode()).hexdigest()
    if missing := prompt_ids - items.keys():
        raise EquipoiseError(
            "entry.missing-prompts",
            f"{run.prompts} lacks {len(missing):,} prompts of {stages[0]}, such as "
            f"{min(missing)!r}",
            "Put back the file that the run was made with.",
        )
    return Evaluated(run, stages[0], load_stored(run), items, rollouts, scores)


def _made_by(run: Evaluated) -> dict[str, Any]:
    """The configuration, the stage, and the way of asking, which no key holds."""
    return {
        **run.loaded.resolved,
        "stage": run.stage,
        "audit": (run.provenance.audit or AuditRow()).model_dump(exclude={"subject"}),
    }


# --- what may be compared ------------------------------------------------------------------------


def shared_items(first: Evaluated, second: Evaluated, checks: Checks) -> frozenset[str]:
    """The prompts that both have replied to, in whole sets; all of them unless that is allowed.

    Raises `UsageError` for one evaluation twice, for other items, and for what was scored in
    another way.
    """
    if (first.run.root.resolve(), first.stage) == (second.run.root.resolve(), second.stage):
        raise UsageError(
            "compare.same-evaluation",
            f"{first.path} is named twice: a model is not compared with itself",
            "Name two evaluations: both stages of one run are DIR/baseline DIR/final.",
        )
    tasks = [run.loaded.environment_class.name for run in (first, second)]
    if tasks[0] != tasks[1]:
        raise UsageError(
            "compare.other-task",
            f"{first.path} is of the task {tasks[0]}, {second.path} of {tasks[1]}",
            "Compare runs of one task.",
        )
    if not checks.different_environments:
        _refuse_other_environments(first, second)
    shared = {name for name, digest in first.items.items() if second.items.get(name) == digest}
    if shared == first.items.keys() == second.items.keys():
        return frozenset(shared)
    if not checks.different_items:
        extras = [(run.path, run.items.keys() - shared) for run in (first, second)]
        details = " and ".join(
            f"{path} has {len(extra):,} others" + (f", such as {min(extra)!r}" if extra else "")
            for path, extra in extras
        )
        raise UsageError(
            "compare.other-prompts",
            f"the two were not asked the same: {len(shared):,} prompts are equal, and {details}",
            "Compare what was asked the same, or the equal prompts alone with --different-items.",
        )
    prompts = _in_whole_sets(first, shared) & _in_whole_sets(second, shared)
    if not prompts:
        raise UsageError(
            "compare.no-common-item",
            f"{first.path} and {second.path} have no item in common",
            "Nothing can be paired: evaluate both models on the same prompts.",
        )
    return frozenset(prompts)


def drawn_differently(first: Evaluated, second: Evaluated) -> list[Difference]:
    """List the sampling settings that differ; see `_drawn_by`."""
    sides = dict(_drawn_by(first)), dict(_drawn_by(second))
    return [
        Difference(name, value, sides[1][name])
        for name, value in sides[0].items()
        if sides[1].get(name, value) != value
    ]


def _drawn_by(run: Evaluated) -> Iterator[tuple[str, str]]:
    """Yield what decides a reply besides model and prompt, as far as it is known."""
    resolved = run.loaded.resolved
    audit = run.provenance.audit or AuditRow()
    endpoint = audit.subject.endpoint
    yield "engine", "an endpoint" if endpoint else run.provenance.engine
    drawing = {key: value_at(resolved, key) for key in _DRAWING}
    if endpoint:
        for name, value in (endpoint.get("parameters") or {}).items():
            key = {"max_tokens": "max_new_tokens"}.get(name, name)
            drawing[f"policy.generation.{key}"] = value
    else:
        drawing |= {key: value_at(resolved, key) for key in _LOADING}
        template = run.provenance.hashes.get(CHAT_TEMPLATE)
        if template:
            yield "chat template", template
    yield from ((key, str(value)) for key, value in drawing.items())
    yield "system prompt", audit.variant.system or "none"
    yield "examples", str(audit.variant.shots)
    yield "blinded", "yes" if audit.variant.blinded else "no"


def _in_whole_sets(run: Evaluated, names: set[str]) -> set[str]:
    torn = {r.set_id for r in run.rollouts if r.prompt_id not in names}
    return {r.prompt_id for r in run.rollouts if r.set_id not in torn}


def _refuse_other_environments(first: Evaluated, second: Evaluated) -> None:
    first_scoring, second_scoring = (dict(_scored_by(run)) for run in (first, second))
    differing = sorted(
        k
        for k in first_scoring.keys() & second_scoring.keys()
        if first_scoring[k] != second_scoring[k]
    )
    differing += sorted(first_scoring.keys() ^ second_scoring.keys())
    models, counterparts = dict(_answered_by(first)), dict(_answered_by(second))
    differing += [name for name, model in models.items() if counterparts.get(name, model) != model]
    if differing:
        raise UsageError(
            "compare.other-environment",
            f"{first.path} and {second.path} were not scored alike: {', '.join(differing[:5])}",
            "Evaluate both with one configuration, or compare all the same with "
            "--different-environments.",
        )


def _scored_by(run: Evaluated) -> Iterator[tuple[str, str]]:
    """Yield what a score depends on besides the reply."""
    settings = dict(leaves({"env": run.loaded.resolved["env"]}))
    scoring = (key for key in settings if _NOT_SCORING.isdisjoint(key.split(SEPARATOR)))
    yield from ((key, str(settings[key])) for key in scoring)
    yield from (run.provenance.sources or {}).items()
    yield "the environment's code", str(run.provenance.hashes.get("environment"))


def _answered_by(run: Evaluated) -> Iterator[tuple[str, str]]:
    """Yield the models that a judge's or a generator's server named in its answers."""
    audited = run.provenance.audit and run.provenance.audit.subject.model
    for model, counts in run.provenance.usage.calls.items():
        models = sorted(name.removeprefix(MODEL) for name in counts if name.startswith(MODEL))
        if model != audited and models:
            yield f"what answered as {model}", ", ".join(models)


# --- the comparison ------------------------------------------------------------------------------


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
    def two_references(self) -> bool:
        hashes = [[run.provenance.hashes.get(REFERENCE) for run in runs] for runs in self.runs]
        return any(first != second for first, second in hashes)

    @property
    def frozen(self) -> bool:
        """Whether one is a frozen model, which has distance 0 from its reference by definition."""
        return any(run.stage == BASELINE for runs in self.runs for run in runs)


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
    settings = statistics_settings(first.runs[0].loaded.config)
    measured = cache(Evaluated.measured)  # the first entry is in every pair
    uncorrected = {
        (n, name): comparison
        for n, pair in enumerate(pairs)
        for name, comparison in _uncorrected(pair, settings, measured).items()
    }
    metrics = [measured(pair.runs[0][0], pair.items[0]).metrics for pair in pairs]
    directions = {
        (n, name): direction_of(metrics[n][name], frozen=pairs[n].frozen) for n, name in uncorrected
    }
    corrected = with_verdicts(uncorrected, directions, settings)
    return EntriesComparison(
        task=first.runs[0].loaded.environment_class.name,
        confidence=settings.confidence,
        allowed=tuple(name for name, allowed in asdict(checks).items() if allowed),
        entries=tuple(compared_entry(entry, settings, measured) for entry in entries),
        comparisons=tuple(
            _compared_pair(
                pair, metrics[n], {name: c for (m, name), c in corrected.items() if m == n}
            )
            for n, pair in enumerate(pairs)
        ),
    )


def compared_entry(entry: Entry, settings: StatisticsSettings, measured: Measure) -> ComparedEntry:
    """Measure every metric of an entry, and the breakdowns that its task draws."""
    runs = entry.runs
    audits = [run.provenance.audit for run in runs]
    # Nothing else is resampled.
    estimates = [estimates_of(_drawn(run, measured), settings) for run in runs]
    metrics, breakdowns = estimates[0]
    if len(runs) > 1:
        same_items = len({frozenset(run.items.items()) for run in runs}) == 1
        breakdowns = {}
        metrics = {
            name: mean_estimate(
                [of_run[name] for of_run, _ in estimates],
                settings.confidence,
                same_items=same_items,
            )
            for name in metrics
        }
    return ComparedEntry(
        name=entry.name,
        runs=tuple(run.path for run in runs),
        models=tuple(sorted({run.provenance.model for run in runs})),
        seeds=tuple(run.seed for run in runs),
        variants=tuple(asdict(audit.variant) for audit in audits if audit),
        caveats=tuple(dict.fromkeys(caveat for run in runs for caveat in run.caveats)),
        n_rollouts=sum(len(run.rollouts) for run in runs),
        n_failed=sum(score.error is not None for run in runs for score in run.scores),
        metrics=metrics,
        breakdowns=breakdowns,
    )


def _drawn(run: Evaluated, measured: Measure) -> Measurement:
    """Measure a run, with those breakdowns alone that the task draws."""
    measurement = measured(run, frozenset(run.items))
    breakdowns = {
        chart.breakdown: {key: {chart.metric: metrics[chart.metric]} for key, metrics in keys}
        for chart in run.loaded.environment_class.presentation.charts
        if (keys := measurement.breakdowns.get(chart.breakdown, {}).items())
        and all(chart.metric in metrics for _, metrics in keys)
    }
    return replace(measurement, breakdowns=breakdowns)


def _compared_pair(
    pair: Pair, metrics: Mapping[str, Metric], comparisons: Mapping[str, MetricComparison]
) -> ComparedPair:
    differing = (d for first, second in pair.runs for d in drawn_differently(first, second))
    runs_and_items = zip(pair.runs, pair.items, strict=True)
    of_references = [name for name in comparisons if metrics[name].of_reference]
    return ComparedPair(
        first=pair.first.name,
        second=pair.second.name,
        items=tuple(map(len, pair.items)),
        replies=tuple((a.replies(items), b.replies(items)) for (a, b), items in runs_and_items),
        drawn_differently=tuple(dict.fromkeys(differing)),
        own_references=tuple(of_references) if pair.two_references else (),
        metrics=comparisons,
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


def _uncorrected(
    pair: Pair, settings: StatisticsSettings, measured: Measure
) -> dict[str, MetricComparison]:
    """Compare a pair in every metric, without a correction over all pairs."""
    runs = [
        compare(
            measured(first, items), measured(second, items), settings, halves=first.halves(items)
        )
        for (first, second), items in zip(pair.runs, pair.items, strict=True)
    ]
    if len(runs) == 1:
        return runs[0]
    metrics = measured(pair.runs[0][0], pair.items[0]).metrics
    same_items = len(set(pair.items)) == 1
    return {
        name: compare_over_seeds(
            metrics[name],
            [comparisons[name] for comparisons in runs],
            confidence=settings.confidence,
            same_items=same_items,
        )
        for name in runs[0]
    }
