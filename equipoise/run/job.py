"""One run at work: the job that an engine is given, its failures, and what it evaluates.

Reference, baseline and final evaluation are the same on both engines. An engine opens a `Policy`:
how the model writes and is trained. What is drawn is kept before it is scored, so that what scores
it may fail.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from environments.base import (
    TRAIN_SPLIT,
    VALIDATION_SPLIT,
    Failure,
    PromptRecord,
    Rollout,
    Score,
    ScoreError,
)
from environments.chat import BudgetSpentError
from environments.contract import Environment
from environments.presentation import Presentation
from equipoise.config import Config, LoadedConfig
from equipoise.config.schedule import total_steps
from equipoise.files.console import ShowProgress, no_progress
from equipoise.files.disk import hash_file, write_json
from equipoise.files.errors import EquipoiseError
from equipoise.files.template import check_template, template_hash
from equipoise.run.directory import (
    GREEDY,
    Comparison,
    Evaluation,
    Modes,
    Probe,
    RunDirectory,
    write_content,
)
from equipoise.run.history import Row
from equipoise.run.ledger import CHAT_TEMPLATE, Meter, Provenance, StageAccount
from equipoise.run.rollouts import (
    read_generations,
    read_rollouts,
    read_scored_rollouts,
    write_generations,
    write_rollouts,
)
from equipoise.run.seals import seal
from equipoise.run.task import BUDGET_REMEDY
from equipoise.statistics.compare import Halves, compare
from equipoise.statistics.evaluation import estimates_of, learning_signal
from equipoise.statistics.intervals import StatisticsSettings

_LOG = logging.getLogger(__name__)


#: From all steps and those that are done to what takes each row of the history in the block.
Watch = Callable[[int, int], AbstractContextManager[Callable[[Row], None]]]
#: What a stage has measured.
Measured = Evaluation | Modes | Probe


def _show_nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Display:
    """The functions by which a command shows a run at work; by default nothing is shown."""

    #: Told the title of a stage as it begins.
    begin: Callable[[str], None] = _show_nothing
    progress: ShowProgress = no_progress
    #: Told what the stage of that name has measured.
    show: Callable[[Presentation, str, Measured], None] = _show_nothing
    #: The model is evaluated alone, so that its figures are not those before a training.
    audited: bool = False
    #: Lets the command print to another file than NeMo-RL's output goes to.
    writing_to: Callable[[TextIO], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Job:
    """One run: its configuration, its directory, its prompts and what gives it reward."""

    loaded: LoadedConfig
    run: RunDirectory
    records: Sequence[PromptRecord]
    environment: Environment
    model_name: str
    meter: Meter
    display: Display = Display()

    @property
    def config(self) -> Config:
        return self.loaded.config

    def show(self, stage: str, measured: Measured) -> None:
        self.display.show(self.environment.presentation, stage, measured)

    @property
    def steps(self) -> int:
        """The steps of the whole training."""
        return total_steps(len(self.training_prompts), self.config)

    @property
    def training_prompts(self) -> list[PromptRecord]:
        return self._split(TRAIN_SPLIT)

    @property
    def validation_prompts(self) -> list[PromptRecord]:
        return self._split(VALIDATION_SPLIT)

    @property
    def evaluation_prompts(self) -> list[PromptRecord]:
        return self._split(self.config.equipoise.evaluation.split)

    def _split(self, name: str) -> list[PromptRecord]:
        return [record for record in self.records if record.split == name]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note in the provenance how many seconds a stage took, stops and resumptions added up."""
        started = time.perf_counter()
        before = self.run.ledger.read().seconds.get(stage, 0.0)
        try:
            yield
        finally:
            seconds = round(before + time.perf_counter() - started, 1)
            self.run.ledger.update(Provenance(seconds={stage: seconds}))


def record_sources(job: Job) -> None:
    """Note in the provenance what the reward depends on.

    Raises `EquipoiseError` when that has changed since the run began: its steps would not be of
    one kind.
    """
    if not job.environment.offers(Environment.sources):
        return
    current = dict(job.environment.sources())
    before = job.run.ledger.read().sources
    before = current if before is None else before
    if changed := sorted(
        name for name in {**before, **current} if before.get(name) != current.get(name)
    ):
        raise EquipoiseError(
            "run.changed-reward",
            f"since this run began, {', '.join(changed)} changed, and with it the reward",
            "Put back what it was, or start a new run.",
        )
    job.run.ledger.update(Provenance(sources=current))


def record_model(job: Job, tokenizer: Any, identity: str, **about: Any) -> None:
    """Note in the provenance what is trained and by which template it reads; log what to know."""
    hashes = model_hashes(tokenizer, identity, job.records)
    job.run.ledger.update(Provenance(hashes=hashes, **about))


def model_hashes(
    tokenizer: Any, identity: str, records: Sequence[PromptRecord]
) -> Mapping[str, str]:
    """Return a model and its template for the provenance; log what to know of how it reads."""
    if note := check_template(tokenizer, records):
        _LOG.warning(note)
    return {"model": identity, CHAT_TEMPLATE: template_hash(tokenizer)}


def check_environment(environment: Environment, progress: ShowProgress = no_progress) -> None:
    """Ask what gives reward one question, before anything is generated for it.

    Raises `EquipoiseError` when it does not answer.
    """
    if not environment.offers(Environment.check):
        return
    with progress("asking what gives reward"):
        problem = environment.check()
    if problem:
        raise EquipoiseError(
            "environment.no-answer",
            f"what gives reward does not answer: {problem}",
            "Check its address, name and key, and that it runs: see docs/judges.md. Nothing "
            "was generated.",
        )


# --- failures -------------------------------------------------------------------------------------
# Scores that failed: when there are so many, or of such a kind, that a run must stop.


def scores_of(environment: Environment, rollouts: Sequence[Rollout]) -> list[Score]:
    """The environment's scores. Raises `EquipoiseError` where one is NaN or infinite."""
    try:
        return environment.score(rollouts)
    except ScoreError as error:
        raise EquipoiseError(
            error.code,
            f"the environment {environment.name} ({type(environment).__module__}): {error}",
            "Correct its `score`: what cannot be scored is Score(None, error=Failure(...)).",
        ) from error


def score_within_budget(environment: Environment, rollouts: Sequence[Rollout]) -> list[Score]:
    """The environment's scores; when a budget is used up, all failed, for `FailureMonitor`."""
    try:
        return scores_of(environment, rollouts)
    except BudgetSpentError as error:
        return [Score(None, error=Failure("budget", str(error)))] * len(rollouts)


def refuse_failures(
    scores: Sequence[Score], max_rate: float, subject: str, *, to_train: bool = True
) -> None:
    """Raise `EquipoiseError` when so many rollouts failed that their metrics would mislead.

    Where nothing is trained on their rewards (not `to_train`), a reply with an outcome is measured
    without its reward, which is logged.
    """
    failed = [(score.error, score.outcome) for score in scores if score.error]
    failures = Counter(error for error, outcome in failed if to_train or outcome is None)
    if failures.total() > max_rate * len(scores):
        raise EquipoiseError(
            "evaluation.failed-scores",
            f"{failures.total():,} of {len(scores):,} rollouts of {subject} could not be scored, "
            f"more than equipoise.max_failure_rate = {max_rate:.0%}: {_most_common(failures)}",
            "Remove the cause, then continue with --resume.",
        )
    if unrewarded := Counter(error for error, _ in failed) - failures:
        _LOG.warning(
            f"{unrewarded.total():,} of {len(scores):,} replies of {subject} have no reward "
            f"({_most_common(unrewarded)}); what needs none is measured all the same"
        )


def _most_common(failures: Counter[Failure]) -> str:
    return "; ".join(f"{f.kind}: {f.text} ({n}x)" for f, n in failures.most_common(3))


@dataclass(slots=True)
class FailureMonitor:
    """Counts failed scores over a window of steps and says when there are too many."""

    max_rate: float
    window: int
    _steps: deque[tuple[int, int]] = field(init=False)
    _failures: Counter[Failure] = field(init=False, default_factory=Counter)
    _budget_spent: Failure | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._steps = deque(maxlen=self.window)

    def add(self, errors: Sequence[Failure | None]) -> None:
        """Count one step, from the error of each of its rollouts, None where there was none."""
        failures = [error for error in errors if error is not None]
        self._steps.append((len(failures), len(errors)))
        self._failures.update(failures)
        spent = (failure for failure in failures if failure.kind == "budget")
        self._budget_spent = next(spent, self._budget_spent)

    @property
    def rate(self) -> float:
        """Failed share over the window, 0 to 1."""
        failed = sum(count for count, _ in self._steps)
        return failed / max(1, sum(total for _, total in self._steps))

    @property
    def exceeded(self) -> bool:
        return self._budget_spent is not None or self.rate > self.max_rate

    def error(self) -> EquipoiseError:
        """The message of a run that stopped."""
        if self._budget_spent is not None:
            remedy = f"A checkpoint was saved. {BUDGET_REMEDY}"
            return EquipoiseError("training.spent-budget", self._budget_spent.text, remedy)
        return EquipoiseError(
            "training.failed-scores",
            f"{self.rate:.0%} of the rollouts of the last {len(self._steps)} steps could not be "
            f"scored, more than equipoise.max_failure_rate = {self.max_rate:.0%}: "
            f"{_most_common(self._failures)}",
            "A checkpoint was saved. Remove the cause, then continue with --resume.",
        )


# --- evaluation -----------------------------------------------------------------------------------

#: Records, completions of each, the stage -> their rollouts, siblings adjacent.
Sample = Callable[[Sequence[PromptRecord], int, str], list[Rollout]]
#: The same of a model that may fail: with each rollout why it has no reply, None where it has one.
Draw = Callable[[Sequence[PromptRecord], int, str], tuple[list[Rollout], list[Failure | None]]]


class Policy(Protocol):
    """The model of a run, open on an engine."""

    @property
    def steps(self) -> int:
        """How many steps its weights were trained: none, or a checkpoint's, or all."""

    def sampler(self) -> Sample:
        """Return how it writes with these weights."""

    def train(self) -> None:
        """Take the steps that are left. Raises `Stopped` where it was stopped before the last one.

        An engine that ends its workers with the training leaves `steps` as they were: it has to be
        opened again.
        """


#: Rollouts with their scores.
Scored = tuple[Sequence[Rollout], Sequence[Score]]

REFERENCE, BASELINE, FINAL = "reference", "baseline", "final"

#: In the evidence of a score where the model gave no reply.
NO_REPLY = "no_reply"

_NO_SIGNAL = (
    "Name a model that writes what the task asks for, fine-tune it on examples first (`equipoise "
    "prepare TASK --examples FILE`, see docs/own-data.md), let it write more "
    "(policy.generation.max_new_tokens), or let its generations differ "
    "(policy.generation.temperature). equipoise.stop_without_signal=false trains all the same."
)


def take_reference(job: Job, frozen: Sample | None = None) -> None:
    """Hand what the frozen model decides to the environment of this process, if it needs it.

    `frozen` draws it where the run has none yet.
    """
    path, generations = job.run.reference, job.environment.reference_generations
    if generations and frozen and not path.exists():
        with job.timed(REFERENCE):
            job.display.begin("Reference: what the frozen model decides")
            write_rollouts(path, frozen(job.records, generations, REFERENCE))
        seal(job.run, path)
    if generations and path.exists():
        job.run.ledger.update(Provenance(hashes={REFERENCE: hash_file(path)}))
        job.environment.set_reference(read_rollouts(path))


def begin_training(job: Job) -> None:
    """Log how much signal the baseline has for GRPO, and that training begins or continues.

    Raises `EquipoiseError` when there is nothing to learn from, unless the configuration wants to
    go on.
    """
    signal = learning_signal(*read_scored_rollouts(job.run.rollouts(BASELINE)))
    examples = "".join(f"\n  {reply}" for reply in signal.commonest)
    summary = f"{signal}. The commonest replies:{examples}"
    if signal.none and job.config.equipoise.stop_without_signal:
        raise EquipoiseError(
            "training.no-signal", f"there is nothing to learn from: {summary}", _NO_SIGNAL
        )
    if signal.none or signal.little:
        amount = "nothing" if signal.none else "little"
        _LOG.warning(f"there is {amount} to learn from: {summary}")
    else:
        _LOG.info(f"signal: {signal}")
    job.display.begin(f"GRPO training, {job.steps} steps")


def statistics_settings(config: Config) -> StatisticsSettings:
    e = config.equipoise.evaluation
    return StatisticsSettings(e.bootstrap_draws, e.permutations, e.confidence, e.seed)


def evaluate(job: Job, stage: str, sample: Sample) -> None:
    """Sample the evaluation split, score it and write the result; an existing result is kept.

    Raises `EquipoiseError` when too many rollouts could not be scored.
    """
    if job.run.is_evaluated(stage):
        return
    generations = job.run.generations(stage)
    with job.timed(stage):
        if generations.exists():
            _LOG.info(f"scoring what was generated before: {generations}")
        else:
            generate(job, stage, as_draw(sample))
        score(job, stage)


def as_draw(sample: Sample) -> Draw:
    """Return a `Sample` as a `Draw` without failures."""

    def draw(
        records: Sequence[PromptRecord], generations: int, stage: str
    ) -> tuple[list[Rollout], list[Failure | None]]:
        rollouts = sample(records, generations, stage)
        return rollouts, [None] * len(rollouts)

    return draw


def generate(job: Job, stage: str, draw: Draw) -> None:
    """Draw the replies to the evaluation split, and write them with what they took."""
    job.display.begin("Evaluation" if job.display.audited else f"{stage} evaluation")
    number, tokens = job.config.equipoise.evaluation.generations, dict(job.meter.tokens)
    started = time.perf_counter()
    rollouts, failures = draw(job.evaluation_prompts, number, stage)
    account = StageAccount(
        **{name: count - tokens[name] for name, count in job.meter.tokens.items()},
        generation_time_seconds=round(time.perf_counter() - started, 2),
    )
    job.run.ledger.update(Provenance(generation={stage: account}))
    write_generations(job.run.generations(stage), rollouts, failures)


def score(job: Job, stage: str, *, to_train: bool = True) -> None:
    """Score what `generate` wrote, and write it again with the scores and the metrics.

    evaluation.json is written last of the files; the generations go after it. Raises
    `EquipoiseError` when too many rollouts could not be scored, or measured where nothing is
    trained on their rewards (not `to_train`).
    """
    run, environment, config = job.run, job.environment, job.config.equipoise
    statistics = statistics_settings(job.config)
    rollouts, failures = read_generations(run.generations(stage))
    started = time.perf_counter()
    with job.display.progress(f"scoring {len(rollouts):,} replies"):
        # A missing reply is scored as empty text, because sets and groups must be whole.
        scores = [
            Score(None, error=failure, evidence={NO_REPLY: True}) if failure else score
            for score, failure in zip(scores_of(environment, rollouts), failures, strict=True)
        ]
    subject = f"the {stage} evaluation"
    refuse_failures(scores, config.max_failure_rate, subject, to_train=to_train)
    account = run.ledger.read().generation[stage].model_dump()
    account["scoring_time_seconds"] = round(time.perf_counter() - started, 2)
    with job.display.progress("measuring"):
        write_rollouts(run.rollouts(stage), rollouts, scores)
        measurement = environment.measure(rollouts, scores)
        metrics, breakdowns = estimates_of(measurement, statistics)
        kinds = Counter(score.error.kind for score in scores if score.error)
        for name, document in environment.exports(rollouts, scores).items():
            write_json(run.evaluation(stage).with_name(name), document)
        names = (environment.watched, environment.objective, *metrics)
        better = {name: metric.better for name, metric in measurement.metrics.items()}
        evaluation = Evaluation.model_validate(
            {
                "schema": 1,
                "task": environment.name,
                "split": config.evaluation.split,
                "model": job.model_name if stage == BASELINE else str(run.final_checkpoint),
                "n_prompts": len({rollout.prompt_id for rollout in rollouts}),
                "n_rollouts": len(rollouts),
                "n_failed": kinds.total(),
                "failures": kinds,
                "confidence": statistics.confidence,
                "presentation": environment.presentation,
                "objective": environment.objective,
                # What the alarm goes by; None without any metric.
                "watched": next(
                    ({"metric": n, "better": better[n]} for n in names if n in metrics), None
                ),
                **account,
                "metrics": metrics,
                **breakdowns,
            }
        )
        write_content(run.evaluation(stage), evaluation)
    # Sealed first: a stage that still has its generations is not finished, and is scored again.
    seal(run, run.evaluation(stage).parent)
    run.generations(stage).unlink()
    job.show(stage, evaluation)


def score_baseline(job: Job, name: str, rollouts: Sequence[Rollout]) -> Scored:
    """Score the replies of a trivial baseline. Raises `EquipoiseError` like `score`."""
    scores = scores_of(job.environment, rollouts)
    refuse_failures(scores, job.config.equipoise.max_failure_rate, f"the trivial baseline {name!r}")
    return rollouts, scores


# --- the trained model ----------------------------------------------------------------------------
# Its replies are drawn while an engine has it, and scored when the engine has gone.


def is_drawn(job: Job) -> bool:
    """Return whether every reply of the trained model is there."""
    return job.run.is_evaluated(FINAL) or job.run.generations(FINAL).exists()


def after_training(job: Job, trained: Sample) -> None:
    """Draw the trained model's replies; the model itself is saved by now."""
    with job.timed(FINAL):
        if job.run.probe.exists():  # it is compared with the model's likeliest replies
            rollouts = trained(job.evaluation_prompts, 1, GREEDY)
            write_generations(job.run.greedy_generations, rollouts, [None] * len(rollouts))
        generate(job, FINAL, as_draw(trained))


def score_final(job: Job) -> None:
    """Score the trained model's replies, unless that is done."""
    if job.run.is_evaluated(FINAL):
        return
    with job.timed(FINAL):
        if (drawn := job.run.greedy_generations).exists():
            # As often as a baseline of one reply gives it.
            copies = job.loaded.env_settings.least_generations
            rollouts = [rollout for rollout in read_generations(drawn)[0] for _ in range(copies)]
            with job.display.progress("scoring the likeliest replies"):
                scored = score_baseline(job, GREEDY, rollouts)
            write_rollouts(job.run.greedy, *scored)
            drawn.unlink()
        score(job, FINAL)


def compare_stages(job: Job) -> None:
    """Compare every metric before and after, from the files of both stages."""
    run, settings = job.run, statistics_settings(job.config)
    baseline, final = (read_scored_rollouts(run.rollouts(stage)) for stage in (BASELINE, FINAL))
    with job.display.progress("comparing"):
        measure = job.environment.measure
        after = measure(*final)
        del final  # the halves of the baseline take as much
        before, halves = measure(*baseline), Halves.of(measure, *baseline)
        comparison = compare(before, after, settings, frozen=True, halves=halves)
    content = Comparison(schema=1, before=BASELINE, after=FINAL, metrics=comparison)
    write_content(run.comparison, content)
    seal(run, run.comparison)
