"""An audit: every model in every way of asking, each a row with a run directory of its own.

results/audits/<name>/
  audit.json                what was asked for; --resume reads it
  <task>/<row>/             a run directory with a baseline, and nothing trained
  <task>/compare.json, compare.html    the rows beside each other, each against the first
  answers/                  what endpoints replied
  models/                   what was made of checkpoints and adapters, so that it loads
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data_prep.files import read_json, write_json
from data_prep.splits import seeded_digest
from environments.base import (
    CONTROL_SPLIT,
    CountsCalls,
    Environment,
    NeedsReference,
    PromptRecord,
    SamplesReference,
)
from environments.chat import EndpointModel
from equipoise.audit.compare import compare_entries, write_comparison
from equipoise.audit.endpoint import drawing, whatever_came
from equipoise.audit.entries import Checks, entry_of
from equipoise.audit.subjects import Subject, endpoint_settings, loadable
from equipoise.audit.variants import PLAIN, Ask, Variant, asking, schema_of, unsuited
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.flags import Setting
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.pipeline import model_name, report, reported, start_run
from equipoise.run.directory import NewRun, RunDirectory
from equipoise.run.ownership import owning
from equipoise.run.provenance import read_provenance, record_hash, update_provenance
from equipoise.run.usage import Meter
from equipoise.stages.around_training import (
    BASELINE,
    Draw,
    Sample,
    evaluate_drawn,
    never_failing,
    take_reference,
)
from equipoise.stages.job import Job, check_environment
from equipoise.stages.preparation import prepare_task
from equipoise.stages.prompts import make_prompts, record_prompts
from equipoise.stages.tracking import Tracker
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

FILE = "audit.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Audit:
    """What was asked for. `limit` is how many prompts at most, in whole sets; None for all."""

    tasks: tuple[str, ...]
    subjects: tuple[Subject, ...]
    variants: tuple[Variant, ...] = (PLAIN,)
    limit: int | None = None
    config_files: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, Any], ...] = ()  # flag, key, value
    assignments: tuple[str, ...] = ()
    schema: int = _SCHEMA


@dataclass(frozen=True, slots=True)
class Row:
    """One model asked in one way."""

    subject: Subject
    variant: Variant

    @property
    def name(self) -> str:
        """What its folder is called."""
        plain = self.variant == PLAIN
        return self.subject.label if plain else f"{self.subject.label}--{self.variant.name}"


@dataclass(frozen=True, slots=True)
class Writer:
    """How a model writes: within a row's job; what it is, and what its tokenizer shows it.

    `identity` says what decides its reference, see `take_reference`.
    """

    draw: Callable[[Job, Variant], Draw]
    reference: Callable[[Job], Sample]
    shown: Callable[[PromptRecord], object]
    hashed: str | None = None
    identity: str | None = None


def write_audit(root: Path, audit: Audit) -> None:
    """Write audit.json."""
    write_json(root / FILE, asdict(audit))


def read_audit(root: Path) -> Audit:
    """What `--resume` goes on with. Raises `UsageError` where there is none."""
    try:
        return TypeAdapter(Audit).validate_python(read_json(root / FILE))
    except (OSError, ValueError, ValidationError) as error:
        raise UsageError(
            f"{root} is no audit to resume: {FILE}: {str(error).splitlines()[0]}",
            "Name the folder of an audit, results/audits/<name>.",
        ) from None


def load_row(audit: Audit, task: str, model: str, root: Path, row: str) -> LoadedConfig:
    """The configuration of a row: that of its folder where it has begun."""
    kept = RunDirectory(root / task / row).config
    if kept.is_file():
        return load_config(task, Options((kept,)))
    own = (
        ("--model", "policy.model_name", model),
        ("--output-dir", "equipoise.output_dir", str(root)),
        ("--run-name", "equipoise.run_name", row),
        ("--engine", "equipoise.engine", "local"),
        ("--no-wandb", "logger.wandb_enabled", False),
    )
    settings = tuple(Setting(*each) for each in (*own, *audit.settings))
    files = tuple(map(Path, audit.config_files))
    return load_config(task, Options(files, settings, audit.assignments))


def rows_of(audit: Audit, subject: Subject, environment: type[Environment]) -> list[Row]:
    """The rows of a model on one task; of several tasks those without a variant leave it out.

    Raises `UsageError` where the only task has no such variant.
    """
    rows = []
    for variant in audit.variants:
        reason = unsuited(variant, environment, endpoint=bool(subject.endpoint))
        if reason and len(audit.tasks) == 1 and len(audit.subjects) == 1:
            raise UsageError(f"no row {variant.name}: {reason}", "Leave it out.")
        rows += [] if reason else [Row(subject, variant)]
    return rows


def run_audit(audit: Audit, root: Path, reporter: Reporter) -> None:
    """Every row that is not there yet, then what each task's rows are beside each other."""
    for task in audit.tasks:
        rows = []
        for subject in audit.subjects:
            rows += _audit_subject(audit, task, subject, root, reporter)
        _print_usage(root / task, rows, reporter)
        if len(rows) > 1:
            entries = [entry_of(f"{row.name}={root / task / row.name}") for row in rows]
            compared = compare_entries(entries, Checks(), reporter)
            write_comparison(compared, root / task, reporter)


def planned(audit: Audit, root: Path, reporter: Reporter) -> list[tuple[str, ...]]:
    """For `--dry-run`, of each row: prompts, replies, their tokens and price, calls to score."""
    told = []
    for task in audit.tasks:
        for subject in audit.subjects:
            loaded = load_row(audit, task, subject.model or subject.label, root, subject.label)
            prepare_task(loaded, reporter.say, dry_run=True)
            split = loaded.config.equipoise.evaluation.split
            records = make_prompts(loaded, to_train=False)
            asked = evaluated(records, split, audit.limit, loaded.config.grpo.seed)
            rows = rows_of(audit, subject, loaded.environment_class)
            told += [_planned(loaded, row, asked, root) for row in rows]
    return told


def _planned(
    loaded: LoadedConfig, row: Row, records: Sequence[PromptRecord], root: Path
) -> tuple[str, ...]:
    config, settings = loaded.config, loaded.env_settings
    tested = [r for r in records if r.split == config.equipoise.evaluation.split]
    replies = len(tested) * config.equipoise.evaluation.generations
    calls = settings.model_calls(records, replies) if isinstance(settings, CountsCalls) else 0
    if isinstance(settings, SamplesReference) and row.variant == PLAIN:
        replies += len(records) * settings.reference_generations
    tokens = replies * config.policy.generation.max_new_tokens
    cost = 0.0
    if row.subject.endpoint:
        endpoint = endpoint_settings(row.subject, config.policy.generation, root / "answers")
        cost = tokens * endpoint.budget.completion_price / 1e6
    counts = (len(records), replies, tokens)
    priced = f"{cost:,.2f} + prompts" if cost else "-"
    return (
        *(config.equipoise.task, row.name, *(f"{count:,}" for count in counts)),
        *(priced, f"{calls:,}" if calls else "-"),
    )


def evaluated(
    records: Sequence[PromptRecord], split: str, limit: int | None, seed: int
) -> list[PromptRecord]:
    """The split's prompts, or about `limit` of them in whole sets as if by chance.

    Controls are asked beside the whole split alone.
    """
    asked = [record for record in records if record.split == split]
    if limit is None or limit >= len(asked):
        return [r for r in records if r.split in (split, CONTROL_SPLIT)]
    sizes: dict[str, int] = {}
    for record in asked:
        sizes[record.set_id] = sizes.get(record.set_id, 0) + 1
    taken: set[str] = set()
    for name in sorted(sizes, key=partial(seeded_digest, seed)):
        if sum(sizes[one] for one in taken) >= limit:
            break
        taken.add(name)
    return [record for record in asked if record.set_id in taken]


def _audit_subject(
    audit: Audit, task: str, subject: Subject, root: Path, reporter: Reporter
) -> list[Row]:
    """Evaluate a model in every way that is missing; its rows."""
    missing = [Row(subject, variant) for variant in audit.variants]
    first = load_row(audit, task, subject.model, root, missing[0].name)
    rows = rows_of(audit, subject, first.environment_class)
    missing = [row for row in rows if not _is_done(root / task / row.name)]
    if not missing:
        reporter.say(f"{task}: {subject.label}: evaluated already")
        return rows
    model = "" if subject.endpoint else loadable(subject, root / "models" / subject.label, reporter)
    loaded = load_row(audit, task, model or subject.model, root, rows[0].name)
    with reporter.progress("preparing what the prompts need"):
        prepare_task(loaded, reporter.say)
    records = make_prompts(loaded, to_train=False)
    seed = loaded.config.grpo.seed
    asked = evaluated(records, loaded.config.equipoise.evaluation.split, audit.limit, seed)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    with reporter.progress("loading what gives reward"):
        provide_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter)
    with _writer(loaded, subject, records, asked, root, reporter) as writer:
        for row in missing:
            reporter.heading(f"{task}: {row.name}")
            ask = asking(row.variant, environment, records, seed)
            _refuse_no_change(row, asked, ask, writer)
            own = load_row(audit, task, model or subject.model, root, row.name)
            _evaluate_row(own, row, asked, ask, environment, writer, root, reporter)
    return rows


def _is_done(folder: Path) -> bool:
    return RunDirectory(folder).evaluation(BASELINE).exists()


def _evaluate_row(
    loaded: LoadedConfig,
    row: Row,
    records: Sequence[PromptRecord],
    ask: Ask,
    environment: Environment,
    writer: Writer,
    root: Path,
    reporter: Reporter,
) -> None:
    """The reference, where the task needs one, of the plain prompts; then the row's baseline."""
    run, meter = _open_row(loaded, row, records, root, reporter), Meter()
    with owning(run.root, reporter.warn), meter.writing(run.provenance):
        tracker = Tracker(loaded, run, reporter.say)
        own = record_prompts(run)
        job = Job(loaded, run, own, environment, reporter, row.name, meter, tracker)
        if writer.hashed:
            record_hash(run.provenance, "model", writer.hashed)
        with reported(job):
            if isinstance(environment, NeedsReference):
                take_reference(job, writer.reference(job), writer.identity)
            evaluate_drawn(job, BASELINE, _asked(writer.draw(job, row.variant), ask))
        report(job)
        reporter.say(f"report: {run.report}")


def _open_row(
    loaded: LoadedConfig,
    row: Row,
    records: Sequence[PromptRecord],
    root: Path,
    reporter: Reporter,
) -> RunDirectory:
    """The row's folder; it appears whole, and says what is asked and how."""
    folder = root / loaded.config.equipoise.task
    if RunDirectory(folder / row.name).config.is_file():
        return RunDirectory(folder / row.name)
    new = NewRun(folder, row.name, row.name, datetime.now(UTC))
    run = new.create(partial(start_run, loaded, records, reporter))
    told = {"subject": asdict(row.subject), "variant": asdict(row.variant)}
    update_provenance(run.provenance, {"audit": told, "model": row.subject.model})
    return run


def _asked(draw: Draw, ask: Ask) -> Draw:
    """Draws of the variant's prompts; what is recorded of them is that of the plain ones."""
    return lambda records, generations, stage: draw(list(map(ask, records)), generations, stage)


def _refuse_no_change(row: Row, records: Sequence[PromptRecord], ask: Ask, writer: Writer) -> None:
    """Raise `EquipoiseError` for a variant of which the model would see nothing."""
    if row.variant.constrained or row.variant == PLAIN:
        return
    if all(writer.shown(ask(record)) == writer.shown(record) for record in records):
        raise EquipoiseError(
            f"the row {row.name} would be the plain one: no prompt differs",
            "The chat template may leave system messages out, or there is nothing to blind. "
            "Leave the row out.",
        )


# --- how a model writes --------------------------------------------------------------------------


def _writer(
    loaded: LoadedConfig,
    subject: Subject,
    records: Sequence[PromptRecord],
    asked: Sequence[PromptRecord],
    root: Path,
    reporter: Reporter,
) -> AbstractContextManager[Writer]:
    if subject.endpoint:
        return _behind_endpoint(loaded, subject, root)
    return _in_process(loaded, records, asked, reporter)


@contextmanager
def _behind_endpoint(loaded: LoadedConfig, subject: Subject, root: Path) -> Iterator[Writer]:
    generation = loaded.config.policy.generation
    settings = endpoint_settings(subject, generation, root / "answers")
    in_flight = settings.limits.concurrency
    with EndpointModel(settings) as model:
        yield Writer(
            lambda job, variant: drawing(
                job, model, in_flight, schema_of(variant, job.environment)
            ),
            lambda job: whatever_came(drawing(job, model, in_flight)),
            lambda record: record.messages,
        )


@contextmanager
def _in_process(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    asked: Sequence[PromptRecord],
    reporter: Reporter,
) -> Iterator[Writer]:
    # It brings torch and transformers.
    from equipoise.engines.local.engine import open_policy, reference_identity, sampler
    from equipoise.engines.local.generation import render_prompt

    name = model_name(loaded, records, reporter)
    with reporter.progress("loading the model"):
        model = open_policy(loaded.config, asked, name)
    yield Writer(
        lambda job, _: never_failing(sampler(job, model)),
        lambda job: sampler(job, model),
        partial(render_prompt, model.tokenizer),
        model.identity,
        reference_identity(loaded.config, model),
    )


# --- what it took --------------------------------------------------------------------------------


def _print_usage(folder: Path, rows: Sequence[Row], reporter: Reporter) -> None:
    """What each row took, all its starts together."""
    columns = [Column("row", folds=True)]
    columns += [Column(name) for name in ("replies", "failed", "tokens/s", "seconds", "cost")]
    cells = [_usage(RunDirectory(folder / row.name), row) for row in rows]
    reporter.table("What it took", columns, cells)


def _usage(run: RunDirectory, row: Row) -> tuple[str, ...]:
    evaluation = read_json(run.evaluation(BASELINE))
    usage = read_provenance(run.provenance).get("usage", {})
    seconds = evaluation.get("generation_time_seconds") or 0
    rate = evaluation.get("completion_tokens", 0) / seconds if seconds else 0
    calls = usage.get("calls", {}).values()
    cost = sum(counts.get("cost", 0) for counts in calls)
    return (
        row.name,
        f"{evaluation['n_rollouts']:,}",
        f"{evaluation['n_failed']:,}",
        f"{rate:,.0f}" if rate else "-",
        f"{usage.get('seconds', 0):,.0f}",
        f"{cost:,.2f}" if cost else "-",
    )
