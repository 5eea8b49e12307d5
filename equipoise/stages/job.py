"""What an engine is given, and the steps that every engine shares."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from data_prep.files import write_json
from environments.base import (
    Environment,
    HasCheck,
    HasExports,
    HasSources,
    PromptRecord,
    Rollout,
)
from equipoise.config import Config, LoadedConfig
from equipoise.errors import EquipoiseError
from equipoise.evaluation.evaluate import evaluation_dict, presentation_of
from equipoise.evaluation.learning_signal import learning_signal
from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import keep_files
from equipoise.run.ownership import confirm_owner
from equipoise.run.provenance import read_provenance, update_provenance
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts, write_rollouts
from equipoise.run.usage import Meter
from equipoise.stages.failures import refuse_failures
from equipoise.stages.summary import print_evaluation
from equipoise.stages.tracking import Tracker
from equipoise.terminal.console import Reporter

_NO_SIGNAL = (
    "Name a model that writes what the task asks for, let it write more "
    "(policy.generation.max_new_tokens), or let its generations differ "
    "(policy.generation.temperature). equipoise.stop_without_signal=false trains all the same."
)


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
    tracker: Tracker

    @property
    def config(self) -> Config:
        """The configuration's values."""
        return self.loaded.config

    def split(self, name: str) -> list[PromptRecord]:
        """The records of a split."""
        return [record for record in self.records if record.split == name]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note in the provenance how many seconds a stage took, stops and resumptions added up."""
        started = time.perf_counter()
        before = read_provenance(self.run.provenance)["seconds"].get(stage, 0.0)
        try:
            yield
        finally:
            seconds = round(before + time.perf_counter() - started, 1)
            update_provenance(self.run.provenance, {"seconds": {stage: seconds}})


def keep_sources(job: Job) -> None:
    """Note in the provenance what the reward depends on.

    Raises `EquipoiseError` when that has changed since the run began: its steps would not be of
    one kind.
    """
    if not isinstance(job.environment, HasSources):
        return
    now = dict(job.environment.sources())
    before = read_provenance(job.run.provenance).get("sources", now)
    if changed := sorted(name for name in before | now if before.get(name) != now.get(name)):
        raise EquipoiseError(
            f"since this run began, {', '.join(changed)} changed, and with it the reward",
            "Put back what it was, or start a new run.",
        )
    update_provenance(job.run.provenance, {"sources": now})


def check_environment(environment: Environment, reporter: Reporter) -> None:
    """Ask what gives reward one question, before anything is generated for it.

    Raises `EquipoiseError` when it does not answer.
    """
    if not isinstance(environment, HasCheck):
        return
    with reporter.progress("asking what gives reward"):
        problem = environment.check()
    if problem:
        raise EquipoiseError(
            f"what gives reward does not answer: {problem}",
            "Check its address, name and key, and that it runs: see docs/judge-client.md. Nothing "
            "was generated.",
        )


def keep_generations(job: Job, stage: str, draw: Callable[[], Sequence[Rollout]]) -> None:
    """Draw the rollouts of a stage and keep them, so that what scores them may fail."""
    started, tokens = time.perf_counter(), dict(job.meter.tokens)
    rollouts = draw()
    account: dict[str, float] = {n: count - tokens[n] for n, count in job.meter.tokens.items()}
    account["generation_time_seconds"] = round(time.perf_counter() - started, 2)
    update_provenance(job.run.provenance, {"generation": {stage: account}})
    confirm_owner(job.run.root)
    write_rollouts(job.run.generations(stage), rollouts)


def keep_evaluation(job: Job, stage: str, draw: Callable[[], Sequence[Rollout]]) -> None:
    """Score the rollouts of a stage and write them with their metrics.

    They are drawn where none are kept. evaluation.json is written last, so that a stage that has it
    is finished. Raises `EquipoiseError` when too many could not be scored.
    """
    kept = job.run.generations(stage)
    if kept.exists():
        job.reporter.say(f"scoring what was generated before: {kept}")
    else:
        keep_generations(job, stage, draw)
    rollouts = read_rollouts(kept)
    started = time.perf_counter()
    with job.reporter.progress(f"scoring {len(rollouts):,} replies"):
        scores = job.environment.score(rollouts)
    refuse_failures(scores, job.config.equipoise.max_failure_rate, f"the {stage} evaluation")
    account = dict(read_provenance(job.run.provenance)["generation"][stage])
    account["scoring_time_seconds"] = round(time.perf_counter() - started, 2)
    confirm_owner(job.run.root)
    write_rollouts(job.run.rollouts(stage), rollouts, scores)
    with job.reporter.progress("measuring"):
        measurement = job.environment.measure(rollouts, scores)
        evaluation = evaluation_dict(
            measurement,
            task=job.environment.name,
            split=job.config.equipoise.evaluation.split,
            model=job.model_name if stage == "baseline" else str(job.run.final_checkpoint),
            n_prompts=len({rollout.prompt_id for rollout in rollouts}),
            n_rollouts=len(rollouts),
            failures=Counter(score.error.kind for score in scores if score.error),
            settings=job.config.equipoise.evaluation.statistics,
            presentation=presentation_of(job.environment),
        )
    if isinstance(job.environment, HasExports):
        for name, document in job.environment.exports(rollouts, scores).items():
            write_json(job.run.evaluation(stage).with_name(name), document)
    write_json(job.run.evaluation(stage), evaluation | account)
    kept.unlink()
    keep_files(job.run, job.run.evaluation(stage).parent)
    print_evaluation(job.reporter, evaluation)


def refuse_without_signal(job: Job) -> None:
    """Say what the baseline promises of training.

    Raises `EquipoiseError` when there is nothing to learn from, unless the configuration wants to
    go on.
    """
    signal = learning_signal(*read_scored_rollouts(job.run.rollouts("baseline")))
    if not (signal.none or signal.little):
        job.reporter.say(f"signal: {signal}")
        return
    examples = "".join(f"\n  {reply}" for reply in signal.commonest)
    found = f"{signal}. The commonest replies:{examples}"
    if signal.none and job.config.equipoise.stop_without_signal:
        raise EquipoiseError(f"there is nothing to learn from: {found}", _NO_SIGNAL)
    job.reporter.warn(f"there is {'nothing' if signal.none else 'little'} to learn from: {found}")
