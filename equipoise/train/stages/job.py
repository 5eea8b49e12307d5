"""The job that an engine is given, and the checks before it begins."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from environments.base import PromptRecord
from environments.contract import Environment
from equipoise.config import Config, LoadedConfig
from equipoise.errors import EquipoiseError
from equipoise.run.directory import RunDirectory
from equipoise.run.usage import Meter
from equipoise.terminal.console import Reporter
from equipoise.train.stages.tracking import Tracker


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

    @property
    def reference_prompts(self) -> Sequence[PromptRecord]:
        """The records that the reference is drawn for."""
        return self.loaded.env_settings.reference_prompts(self.records)

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
            "Check its address, name and key, and that it runs: see docs/judge-client.md. Nothing "
            "was generated.",
        )
