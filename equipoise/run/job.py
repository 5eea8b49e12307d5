"""The job that an engine is given, and the checks before it begins."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from environments.base import Failure, PromptRecord, Rollout, Score, ScoreError
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.config import Config, LoadedConfig
from equipoise.files.console import Reporter
from equipoise.files.errors import EquipoiseError
from equipoise.run.contents import Evaluation, Modes, Probe
from equipoise.run.directory import RunDirectory
from equipoise.run.history import Row
from equipoise.run.prompts import BUDGET_REMEDY
from equipoise.run.usage import Meter

#: From all steps and those that are done to what takes each row of the history in the block.
Watch = Callable[[int, int], AbstractContextManager[Callable[[Row], None]]]
#: What a stage has measured.
Measured = Evaluation | Modes | Probe
#: Shows what the stage of that name has measured.
Show = Callable[[str, Measured], None]


def _show_nothing(stage: str, measured: Measured) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Job:
    """One run: its configuration, its directory, its prompts and what gives it reward."""

    loaded: LoadedConfig
    run: RunDirectory
    records: Sequence[PromptRecord]
    environment: Environment
    reporter: Reporter
    model_name: str
    meter: Meter
    show: Show = _show_nothing

    @property
    def config(self) -> Config:
        return self.loaded.config

    def split(self, name: str) -> list[PromptRecord]:
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
            self.run.ledger.update(seconds={stage: seconds})


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
    job.run.ledger.update(sources=current)


def check_environment(environment: Environment, reporter: Reporter) -> None:
    """Ask what gives reward one question, before anything is generated for it.

    Raises `EquipoiseError` when it does not answer.
    """
    if not environment.offers(Environment.check):
        return
    with reporter.progress("asking what gives reward"):
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


#: A score that has not failed.
_MEASURED = Score(0.0)


def score_within_budget(environment: Environment, rollouts: Sequence[Rollout]) -> list[Score]:
    """The environment's scores; when a budget is used up, all failed, for `FailureMonitor`."""
    try:
        return scores_of(environment, rollouts)
    except BudgetSpentError as error:
        return [Score(None, error=Failure("budget", str(error)))] * len(rollouts)


def refuse_failures(scores: Sequence[Score], max_rate: float, subject: str) -> None:
    """Raise `EquipoiseError` when so many rollouts failed that their metrics would mislead."""
    failures = [score.error for score in scores if score.error]
    if len(failures) > max_rate * len(scores):
        raise EquipoiseError(
            "evaluation.failed-scores",
            f"{len(failures):,} of {len(scores):,} rollouts of {subject} could not be scored, more "
            f"than equipoise.max_failure_rate = {max_rate:.0%}: {_most_common(Counter(failures))}",
            "Remove the cause, then continue with --resume.",
        )


def refuse_unmeasured(scores: Sequence[Score], max_rate: float, subject: str) -> str:
    """`refuse_failures` of what nothing is trained on: a score with an outcome is measured.

    Returns why rewards are missing beside outcomes, empty where none is.
    """
    measured = [score.error for score in scores if score.error and score.outcome is not None]
    refuse_failures([s if s.outcome is None else _MEASURED for s in scores], max_rate, subject)
    if not measured:
        return ""
    return (
        f"{len(measured):,} of {len(scores):,} replies of {subject} have no reward "
        f"({_most_common(Counter(measured))}); what needs none is measured all the same"
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
