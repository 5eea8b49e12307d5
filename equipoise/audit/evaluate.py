"""An audit: every model in every way of asking, each a row with a run directory of its own.

results/audits/<name>/
  audit.json                what was asked for; --resume reads it
  <task>/<row>/             a run directory with a baseline, and nothing trained
  <task>/compare.json, compare.html    the rows beside each other, each against the first
  answers/                  what endpoints replied
  models/                   what was made of checkpoints and adapters, so that it loads
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from data_prep.files import read_json
from environments.base import Environment, PromptRecord
from equipoise.audit.compare import compare_entries, write_comparison
from equipoise.audit.entries import Checks, entry_of
from equipoise.audit.plan import Audit, Place, Row, evaluated, rows_of, tell_missing_rows
from equipoise.audit.reference import take_row_reference
from equipoise.audit.subjects import Subject, loadable
from equipoise.audit.turns import Turn, take_turns, worked
from equipoise.audit.variants import PLAIN, Ask, asking
from equipoise.audit.writers import Writer, behind_endpoint, in_process
from equipoise.config import LoadedConfig
from equipoise.errors import EquipoiseError
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.pipeline import report, reported, start_run
from equipoise.run.directory import NewRun, RunDirectory
from equipoise.run.kept_files import OpenedRun, open_run, unsealed_note
from equipoise.run.ownership import owning
from equipoise.run.provenance import record_hash, update_provenance
from equipoise.run.usage import Meter
from equipoise.stages.around_training import BASELINE, Draw, keep_drawn, measured, score
from equipoise.stages.job import Job, check_environment
from equipoise.stages.preparation import prepare_task
from equipoise.stages.prompts import make_prompts, record_prompts
from equipoise.stages.tracking import Tracker
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column


@dataclass(frozen=True, slots=True)
class Bench:
    """What all rows of one model on one task share.

    `records` are all of the task's prompts, `asked` those that are evaluated. `unsealed` are parts
    of a run that the model is of and that have no seal.
    """

    place: Place
    model: str
    unsealed: Sequence[str]
    records: Sequence[PromptRecord]
    asked: Sequence[PromptRecord]
    environment: Environment
    writer: Writer


def run_audit(audit: Audit, root: Path, reporter: Reporter) -> None:
    """Every row that is not there yet, then what each task's rows are beside each other."""
    lost: dict[str, EquipoiseError] = {}
    for task in audit.tasks:
        place = Place(audit, task, root, reporter)
        # Endpoints first, so that they are asked while models in this process write.
        subjects = sorted(audit.subjects, key=lambda subject: not subject.endpoint)
        turns = {s.label: _subject_turn(place, s) for s in subjects if s.label not in lost}
        lost |= take_turns(turns, _telling(audit, reporter))
        rows = [row for s in audit.subjects if s.label not in lost for row in _rows(place, s)]
        _print_usage(place, rows)
        if len(rows) > 1 and not lost:
            words = [f"{row.name}={place.run_of(row.name).root}" for row in rows]
            entries = [entry_of(word, unsealed=audit.unsealed) for word in words]
            compared = compare_entries(entries, Checks(), reporter)
            write_comparison(compared, root / task, reporter)
    if lost:
        raise _lost(lost, audit)


def _telling(audit: Audit, reporter: Reporter) -> Callable[[str, EquipoiseError], None]:
    """What tells of a model that is lost while others go on."""

    def tell(label: str, error: EquipoiseError) -> None:
        if len(audit.subjects) > 1:
            reporter.warn(f"{label} is asked no more: {error.message}")

    return tell


def _lost(lost: Mapping[str, EquipoiseError], audit: Audit) -> EquipoiseError:
    """What the audit ends with."""
    if len(audit.subjects) == 1:
        return next(iter(lost.values()))
    told = "\n".join(f"{label}: {error.message}" for label, error in lost.items())
    remedies = dict.fromkeys(error.remedy for error in lost.values() if error.remedy)
    return EquipoiseError(
        f"{len(lost)} of {len(audit.subjects)} models are not evaluated, so nothing is compared:\n"
        f"{told}",
        "\n".join([*remedies, "What is finished is kept: --resume goes on with the rest alone."]),
    )


def _rows(place: Place, subject: Subject) -> list[Row]:
    loaded = place.load(subject.model or subject.label, Row(subject, PLAIN).name)
    return rows_of(place.audit, subject, loaded.environment_class)


def _subject_turn(place: Place, subject: Subject) -> Turn[None]:
    """Evaluate a model in every way that is missing."""
    reporter, plain = place.reporter, Row(subject, PLAIN).name
    environment_class = place.load(subject.model or subject.label, plain).environment_class
    tell_missing_rows(place, subject, environment_class)
    rows = rows_of(place.audit, subject, environment_class)
    missing = [row for row in rows if not place.run_of(row.name).is_evaluated(BASELINE)]
    if not missing:
        reporter.say(f"{place.task}: {subject.label}: evaluated already")
        return
    made = place.root / "models" / subject.label
    accepted = place.audit.unsealed
    model, unsealed = (
        (subject.model, ())
        if subject.endpoint
        else loadable(subject, made, reporter, unsealed=accepted)
    )
    if unsealed:
        reporter.warn(f"{subject.label}: {unsealed_note(unsealed)}")
    loaded = place.load(model, plain)
    with reporter.progress("preparing what the prompts need"):
        prepare_task(loaded, reporter.say)
    records = make_prompts(loaded, to_train=False)
    split, seed = loaded.config.equipoise.evaluation.split, loaded.config.grpo.seed
    asked = evaluated(records, split, place.audit.limit, seed)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    with reporter.progress("loading what gives reward"):
        provide_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter)
    with _writer(place, loaded, subject, records, asked) as writer:
        bench = Bench(place, model, unsealed, records, asked, environment, writer)
        for row in missing:
            reporter.heading(f"{place.task}: {row.name}")
            yield from _evaluate_row(bench, row, seed)


def _writer(
    place: Place,
    loaded: LoadedConfig,
    subject: Subject,
    records: Sequence[PromptRecord],
    asked: Sequence[PromptRecord],
) -> AbstractContextManager[Writer]:
    if subject.endpoint:
        return behind_endpoint(loaded, subject, place.root)
    accepted = place.audit.unsealed
    return in_process(loaded, records, asked, place.reporter, unsealed=accepted)


def _evaluate_row(bench: Bench, row: Row, seed: int) -> Turn[None]:
    """The reference, where the task needs one; then the row's baseline."""
    environment, writer, reporter = bench.environment, bench.writer, bench.place.reporter
    ask = asking(row.variant, environment, bench.records, seed)
    _refuse_no_change(row, bench.asked, ask, writer)
    loaded = bench.place.load(bench.model, row.name)
    run, meter = _open_row(bench, loaded, row), Meter()
    with owning(run.root, reporter.warn), meter.writing(run.provenance, reporter.warn):
        tracker = Tracker(loaded, run, reporter.say)
        records = record_prompts(run)
        job = Job(loaded, run, records, environment, reporter, row.name, meter, tracker)
        if writer.hashed:
            record_hash(run.provenance, "model", writer.hashed)
        with reported(job):
            plain = bench.place.run_of(Row(row.subject, PLAIN).name)
            yield from take_row_reference(job, row, plain, writer, ask)
            yield from _take_baseline(job, row, writer, ask)
        report(job)
        reporter.say(f"report: {run.report}")


def _take_baseline(job: Job, row: Row, writer: Writer, ask: Ask) -> Turn[None]:
    """What the model replies, kept before it is scored, and its scores."""
    if job.run.is_evaluated(BASELINE):
        return
    with job.timed(BASELINE):
        if job.run.generations(BASELINE).exists():
            job.reporter.say("scoring what was generated before")
        else:
            draw = _asked(writer.draw(job, row.variant), ask)
            drawing = partial(measured, job, BASELINE, draw)
            drawn = yield from worked(job.meter, drawing, writer.stop)
            keep_drawn(job, BASELINE, drawn)
        job.reporter.heading(f"{row.name}: {BASELINE} evaluation")
        score(job, BASELINE, to_train=False)


def _open_row(bench: Bench, loaded: LoadedConfig, row: Row) -> RunDirectory:
    """The row's folder; it appears whole, and says what is asked and how."""
    run = bench.place.run_of(row.name)
    if run.config.is_file():
        return run
    new = NewRun(run.root.parent, row.name, row.name, datetime.now(UTC))
    new.create(partial(start_run, loaded, bench.asked, bench.place.reporter))
    asked = {"subject": asdict(row.subject), "variant": asdict(row.variant)}
    told = {**asked, "unsealed": bench.unsealed}
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


def _print_usage(place: Place, rows: Sequence[Row]) -> None:
    """What each row took, all its starts together."""
    if not rows:
        return
    columns = [Column("row", folds=True)]
    columns += [Column(name) for name in ("replies", "failed", "tokens/s", "seconds", "cost")]
    unsealed = place.audit.unsealed
    opened = [open_run(place.run_of(row.name).root, unsealed=unsealed) for row in rows]
    cells = [(row.name, *_usage(run)) for row, run in zip(rows, opened, strict=True)]
    place.reporter.table("What it took", columns, cells)


def _usage(opened: OpenedRun) -> tuple[str, ...]:
    usage = opened.provenance.get("usage", {})
    evaluation = read_json(opened.run.evaluation(BASELINE))
    seconds = evaluation.get("generation_time_seconds") or 0
    rate = evaluation.get("completion_tokens", 0) / seconds if seconds else 0
    cost = sum(counts.get("cost", 0) for counts in usage.get("calls", {}).values())
    return (
        f"{evaluation['n_rollouts']:,}",
        f"{evaluation['n_failed']:,}",
        f"{rate:,.0f}" if rate else "-",
        f"{usage.get('seconds', 0):,.0f}",
        f"{cost:,.2f}" if cost else "-",
    )
