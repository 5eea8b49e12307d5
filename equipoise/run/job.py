"""The job that an engine is given, and the checks before it begins."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.records import manifest_path, write_prompts
from data_prep.text_files import UnsuitablePromptsError
from environments.base import Failure, PromptRecord, Rollout, Score, ScoreError
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.config import LOCAL_MODEL, Config, LoadedConfig
from equipoise.files.console import Reporter
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import Stopped
from equipoise.models.hub import located, refuse_missing_tokenizer
from equipoise.run.directory import BASELINE, FINAL, RunDirectory
from equipoise.run.ledger import code_diff, code_hash, describe_run
from equipoise.run.prompts import BUDGET_REMEDY
from equipoise.run.resume import grow
from equipoise.run.seals import check_files, check_part, record_files
from equipoise.run.usage import Meter


class Observer:
    """A listener to a run as it goes on, which prints, draws or tracks; this one does none."""

    def evaluated(self, stage: str, evaluation: Mapping[str, Any]) -> None:
        """Take a stage's metrics, once they are written."""

    def stepped(self, row: Mapping[str, float | None]) -> None:
        """Take a row of the training history."""

    def alarmed(self, text: str) -> None:
        """Take the alarm, once."""

    def report(self) -> None:
        """Write the report of what there is."""


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
    observer: Observer = field(default_factory=Observer)

    @property
    def config(self) -> Config:
        return self.loaded.config

    def split(self, name: str) -> list[PromptRecord]:
        return [record for record in self.records if record.split == name]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note in the provenance how many seconds a stage took, stops and resumptions added up."""
        started = time.perf_counter()
        before = self.run.ledger.read()["seconds"].get(stage, 0.0)
        try:
            yield
        finally:
            seconds = round(before + time.perf_counter() - started, 1)
            self.run.ledger.update({"seconds": {stage: seconds}})


@contextmanager
def reported(job: Job) -> Iterator[None]:
    """Inside, what goes wrong leaves a report of what there is; damage is looked for before."""
    run = job.run
    # What cannot be made again: the run's inputs, and what NeMo-RL makes as it trains.
    lasting = [run.config, run.prompts, manifest_path(run.prompts)]
    if job.loaded.engine == "nemo_rl":
        lasting += [run.reference, run.history, run.training.parent, run.probe]
        lasting += [run.evaluation(stage).parent for stage in (BASELINE, FINAL)]
    check_files(run, lasting=frozenset(path.name for path in lasting), warn=job.reporter.warn)
    grow(run, job.loaded, job.reporter.say)
    record_sources(job)
    try:
        yield
    except (EquipoiseError, Stopped):
        report(job)
        raise
    except BudgetSpentError as error:  # while evaluating; training stops with a checkpoint
        report(job)
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error


def report(job: Job) -> None:
    """report.html and the model card of what there is, with what it took so far."""
    job.meter.write()
    job.observer.report()


def start_run(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    run: RunDirectory,
    name: str,
) -> None:
    """Write what a new run is made from: provenance.json, code.diff, config.yaml, its prompts."""
    config = loaded.config
    provenance = describe_run(
        task=config.equipoise.task,
        run_name=name,
        engine=loaded.engine,
        model=config.policy.model_name,
        local_model=config.policy.model_name == LOCAL_MODEL,
        seed=config.grpo.seed,
    )
    provenance["hashes"]["environment"] = code_hash(loaded)
    if provenance["local_model"]:  # the report shows what the task says of it
        provenance["local_model_notice"] = loaded.data_module.LOCAL_MODEL_NOTICE
    elif stand_in := loaded.env_settings.stand_in:
        provenance["stand_in"] = stand_in
    run.ledger.create(provenance)
    if diff := code_diff():
        run.code_diff.write_bytes(diff)
    write_text(run.config, loaded.to_yaml())
    write_prompts(run.prompts, records, config.equipoise.data.model_dump())
    record_files(run, run.config, run.prompts, manifest_path(run.prompts))


def model_name(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    reporter: Reporter,
) -> str:
    """The name or folder of the model to train; `local` builds the task's tiny model.

    A packaged model is its folder, which is made once.
    """
    config = loaded.config
    if config.policy.tokenizer.name != config.policy.model_name:
        refuse_missing_tokenizer(config.policy.tokenizer.name)  # before a model is made
    if config.policy.model_name != LOCAL_MODEL:
        with reporter.progress("finding the model"):
            check_part(Path(config.policy.model_name))
            return located(config.policy.model_name, config.equipoise.cache_dir)
    maker = loaded.data_module  # which makes one: the configuration refuses any other here
    reporter.heading("Local model")
    reporter.say(maker.LOCAL_MODEL_NOTICE)
    cache = Path(config.equipoise.cache_dir).expanduser()
    reporter.say(f"It is made once, within one to five minutes, and kept in {cache}.")
    try:
        with reporter.progress("making the local model"):
            folder = maker.build_local_model(records, loaded.local_model_settings, cache)
    except UnsuitablePromptsError as error:
        raise UsageError(error.code, str(error), "Name another model with --model-name.") from error
    reporter.say(f"model: {folder}")
    return str(folder)


def record_sources(job: Job) -> None:
    """Note in the provenance what the reward depends on.

    Raises `EquipoiseError` when that has changed since the run began: its steps would not be of
    one kind.
    """
    if not job.environment.offers(Environment.sources):
        return
    current = dict(job.environment.sources())
    before = job.run.ledger.read().get("sources", current)
    if changed := sorted(
        name for name in before | current if before.get(name) != current.get(name)
    ):
        raise EquipoiseError(
            "run.changed-reward",
            f"since this run began, {', '.join(changed)} changed, and with it the reward",
            "Put back what it was, or start a new run.",
        )
    job.run.ledger.update({"sources": current})


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
            f"than equipoise.max_failure_rate = {max_rate:.0%}: {most_common(Counter(failures))}",
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
        f"({most_common(Counter(measured))}); what needs none is measured all the same"
    )


def most_common(failures: Counter[Failure]) -> str:
    return "; ".join(f"{f.kind}: {f.text} ({n}x)" for f, n in failures.most_common(3))
