"""An audit: every model in every way of asking, each a row with a run directory of its own.

results/audits/<name>/
  audit.json                what was asked for; --resume reads it
  <task>/<row>/             a run directory with a baseline, and nothing trained
  <task>/compare.json, compare.html    the rows beside each other, each against the first
  answers/                  what endpoints replied
  models/                   what was made of checkpoints and adapters, so that it loads
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from environments.base import FailureKind, PromptRecord, Rollout
from environments.contract import Environment
from environments.presentation import Presentation
from equipoise.config import LOCAL_MODEL, LoadedConfig
from equipoise.evaluate.compare import Checks, compare_entries, entry_of
from equipoise.evaluate.plan import (
    Ask,
    Audit,
    Row,
    TaskAudit,
    endpoint_settings,
    failed_rows,
    make_ask,
    prompts_of,
)
from equipoise.evaluate.writers import Writer, behind_endpoint, in_process
from equipoise.files.errors import EquipoiseError
from equipoise.run.directory import Evaluation, NewRun, RunDirectory, read_content
from equipoise.run.job import (
    BASELINE,
    NO_REPLY,
    Display,
    Job,
    check_environment,
    generate,
    score,
    take_reference,
)
from equipoise.run.ledger import PLAIN, AuditRow, Meter, Provenance, Subject, owning
from equipoise.run.rollouts import (
    read_generations,
    read_rollouts,
    read_scored_rollouts,
    write_generations,
)
from equipoise.run.seals import check_part
from equipoise.run.start import record_prompts, reported, start_run
from equipoise.run.task import make_environment, make_prompts, prepare_task, provide_models
from equipoise.statistics.evaluation import MANY_UNREADABLE, learning_signal
from equipoise.statistics.gate import LEAST_CLUSTERS
from equipoise.statistics.seeds import EntriesComparison

_LOG = logging.getLogger(__name__)


#: The one kind of failure that lies in the replies themselves.
_NOTHING_TO_COMPARE: FailureKind = "no_comparison"


@dataclass(frozen=True, slots=True)
class SubjectSetup:
    """The setup that all rows of one model on one task share.

    `records` are all of the task's prompts, `prompts` those that are evaluated.
    """

    task_audit: TaskAudit
    model: str
    records: Sequence[PromptRecord]
    prompts: Sequence[PromptRecord]
    environment: Environment
    writer: Writer
    actions: "Actions"


@dataclass(frozen=True, slots=True)
class Actions:
    """The functions by which a command shows an audit, reports a row, and makes a model load.

    The last converts a subject into a folder and returns what `from_pretrained` loads.
    """

    display: Display
    report: Callable[[Job], None]
    as_model_folder: Callable[[Subject, Path], str]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The comparison of a task's rows with the first of them."""

    task: str
    comparison: EntriesComparison
    presentation: Presentation


def run_audit(audit: Audit, root: Path, actions: Actions) -> Iterator[TaskResult]:
    """Evaluate every row that is missing, and report it; yield the comparison of whole tasks.

    Raises `EquipoiseError` at the end for the models and tasks that are not evaluated.
    """
    errors: dict[str, EquipoiseError] = {}
    for task in audit.tasks:
        task_audit = TaskAudit(audit, task, root)
        failed = dict(_evaluate_task(task_audit, actions))
        errors |= failed
        if not failed and (result := _compare_rows(task_audit, actions.display)):
            yield result
    if errors:
        raise failed_rows(audit, errors)


def _evaluate_task(task_audit: TaskAudit, actions: Actions) -> Iterator[tuple[str, EquipoiseError]]:
    """Evaluate a task's missing rows; yield the errors of a model or the whole task, by name."""
    task, subjects = task_audit.task, task_audit.audit.subjects
    try:
        records = _prepare(task_audit, actions.display)
    except EquipoiseError as error:
        _LOG.warning(f"{task} is not evaluated: {error.message}")
        yield task, error
        return
    for subject in subjects:
        try:
            _evaluate_subject(task_audit, subject, records, actions)
        except EquipoiseError as error:  # the others go on
            if len(subjects) > 1:
                _LOG.warning(f"{task}: {subject.label} is not evaluated: {error.message}")
            yield f"{task}: {subject.label}", error


def _compare_rows(task_audit: TaskAudit, display: Display) -> TaskResult | None:
    """Compare a task's rows with the first; None where it has but one."""
    rows = [row for subject in task_audit.audit.subjects for row in task_audit.rows(subject)]
    if len(rows) == 1:
        return None
    with display.progress("comparing"):
        words = (f"{row.name}={task_audit.run_of(row.name).root}" for row in rows)
        compared = compare_entries(list(map(entry_of, words)), Checks())
    environment = task_audit.load_plain(rows[0].subject).environment_class
    return TaskResult(task_audit.task, compared, environment.presentation)


def _prepare(task_audit: TaskAudit, display: Display) -> Sequence[PromptRecord]:
    """Make a task's prompts and what they need; none where no row is missing."""
    missing = [
        subject
        for subject in task_audit.audit.subjects
        if not all(is_scored(task_audit.run_of(row.name)) for row in task_audit.rows(subject))
    ]
    if not missing:
        return ()
    loaded = task_audit.load_plain(missing[0])
    with display.progress("preparing what the prompts need"):
        prepare_task(loaded, _LOG.info)
    return make_prompts(loaded, to_train=False)


def _evaluate_subject(
    task_audit: TaskAudit, subject: Subject, records: Sequence[PromptRecord], actions: Actions
) -> None:
    """Evaluate a model in every way that is missing."""
    rows = task_audit.rows(subject, _LOG.warning)
    missing = [row for row in rows if not is_scored(task_audit.run_of(row.name))]
    if not missing:
        _LOG.info(f"{task_audit.task}: {subject.label}: evaluated already")
        return
    target = task_audit.root / "models" / subject.label
    model = subject.model
    if not subject.endpoint:
        model = actions.as_model_folder(subject, target)
    loaded = task_audit.load(model, subject.label)
    stand_in = loaded.env_settings.stand_in
    if stand_in and model != LOCAL_MODEL:
        _LOG.warning(f"{subject.label}: {stand_in}")
    prompts = prompts_of(loaded, records, task_audit.audit)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    with actions.display.progress("loading what gives reward"):
        provide_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, actions.display.progress)
    opened: AbstractContextManager[Writer] = (
        behind_endpoint(
            endpoint_settings(subject, loaded.config.policy.generation, task_audit.root)
        )
        if subject.endpoint
        else in_process(loaded, records, prompts, actions.display)
    )
    with opened as writer:
        setup = SubjectSetup(task_audit, model, records, prompts, environment, writer, actions)
        for row in missing:
            actions.display.begin(f"{task_audit.task}: {row.name}")
            _evaluate_row(setup, row, loaded.config.grpo.seed)


def _evaluate_row(setup: SubjectSetup, row: Row, seed: int) -> None:
    """Draw the reference, where the task needs one, then the row's baseline."""
    environment, writer = setup.environment, setup.writer
    ask = make_ask(row.variant, environment, setup.records, seed)
    unchanged = (writer.render(ask(r)) == writer.render(r) for r in setup.prompts)
    if row.variant != PLAIN and all(unchanged):
        raise EquipoiseError(
            "audit.unchanged-prompts",
            f"the row {row.name} would be the plain one: no prompt differs",
            "The chat template may leave system messages out, or there is nothing to blind. "
            "Leave the row out.",
        )
    loaded = setup.task_audit.load(setup.model, row.name)
    run, meter = _open_row(setup, loaded, row), Meter()
    with owning(run.root), meter.writing(run.ledger, _LOG.warning):
        records = record_prompts(run)
        job = Job(loaded, run, records, environment, row.name, meter, setup.actions.display)
        run.ledger.update(Provenance(hashes=writer.hashes))
        with reported(job, setup.actions.report):
            plain = setup.task_audit.run_of(Row(row.subject, PLAIN).name)
            ensure_reference(job, row, plain, writer)
            _take_baseline(job, writer, ask)
        setup.actions.report(job)
        _LOG.info(f"report: {run.report}")


def ensure_reference(job: Job, row: Row, plain: RunDirectory, writer: Writer) -> None:
    """Take the reference of a row, where its task needs one; `plain` is its model's plain row.

    Against the plain row's reference, a row shows the effect of its way of asking.
    """

    def sample(records: Sequence[PromptRecord], generations: int, stage: str) -> list[Rollout]:
        if row.variant == PLAIN:
            return writer.draw(job)(records, generations, stage)[0]  # what failed cannot be read
        check_part(plain.reference)
        return read_rollouts(plain.reference)

    take_reference(job, sample)


def is_scored(run: RunDirectory) -> bool:
    """Return whether a row is evaluated and asking again could score no further reply."""
    if not run.is_evaluated(BASELINE):
        return False
    evaluation = read_content(run.evaluation(BASELINE), Evaluation)
    return evaluation is not None and set(evaluation.failures) <= {_NOTHING_TO_COMPARE}


def _take_baseline(job: Job, writer: Writer, ask: Ask) -> None:
    """Draw the model's replies, keep them, then score them.

    After an earlier start it asks again for the replies that never came, and scores all of them
    again: an endpoint's and a judge's answers are in their caches.
    """
    draw = writer.draw(job)
    with job.timed(BASELINE):
        if _has_replies(job.run):
            _LOG.info("scoring what was generated before")
        else:  # what is recorded of the variant's prompts is that of the plain ones
            generate(job, BASELINE, lambda rs, *how: draw(list(map(ask, rs)), *how))
        score(job, BASELINE, to_train=False)
        warn_of_replies(job.run)


def warn_of_replies(run: RunDirectory) -> None:
    """Warn of too few sets, and of unreadable replies: the commonest ones and what to try."""
    rollouts, scores = read_scored_rollouts(run.rollouts(BASELINE))
    sets = len({rollout.set_id for rollout in rollouts})
    if sets < LEAST_CLUSTERS:
        _LOG.warning(f"{sets} questions or sets show little: a gate needs {LEAST_CLUSTERS}")
    signal = learning_signal(rollouts, scores)
    if signal.unreadable < MANY_UNREADABLE:
        return
    examples = "".join(f"\n  {reply}" for reply in signal.commonest)
    _LOG.warning(
        f"{signal.unreadable:.0%} of the replies could not be read. Show the model the form with "
        f"--few-shot 2, or fine-tune it (docs/own-data.md). The commonest replies:{examples}"
    )


def _has_replies(run: RunDirectory) -> bool:
    """Whether every reply is there; those of a scored row are made ready to be scored again."""
    generations = run.generations(BASELINE)
    if generations.exists():
        return not any(read_generations(generations)[1])
    if not run.evaluation(BASELINE).exists():
        return False
    rollouts, scores = read_scored_rollouts(run.rollouts(BASELINE))
    if any(NO_REPLY in score.evidence for score in scores):
        return False
    write_generations(generations, rollouts, [None] * len(rollouts))
    return True


def _open_row(setup: SubjectSetup, loaded: LoadedConfig, row: Row) -> RunDirectory:
    """Open the row's folder, which appears whole and says what is asked and how."""
    run = setup.task_audit.run_of(row.name)
    if run.config.is_file():
        return run
    new_run = NewRun(run.root.parent, row.name, row.name, datetime.now(UTC))
    new_run.create(partial(start_run, loaded, setup.prompts))
    audit = AuditRow(subject=row.subject, variant=row.variant)
    run.ledger.update(Provenance(audit=audit, model=row.subject.model))
    return run
