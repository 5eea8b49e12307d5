"""A run's task, as an export takes it, and the queue before the environment that scores it."""

import asyncio
import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from data_prep.records import write_prompts
from environments.addresses import AbsolutePath
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, Failure, PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.config import Options, load_config
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluate.entries import task_of
from equipoise.models.task_environment import build_environment, make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import read_rollouts, write_rollouts
from equipoise.run.seals import check_part, open_run
from equipoise.train.stages.job import score_within_budget

ROOT = Path(__file__).resolve().parents[2]
_LOG = logging.getLogger(__name__)
_NO_KEY = (
    "the run's model has a key, which is read where your own file names its variable: write "
    "api_key_env into the settings of this export"
)


class RewardSettings(BaseModel, extra="forbid", frozen=True):
    """The settings of the rewards that an export gives."""

    environment: str = Field(description="package.module.Class of the environment")
    settings: dict[str, Any] = Field(default_factory=dict, description="its env.<name>")
    prompts: AbsolutePath = Field(description="prompts.jsonl, with its manifest beside it")
    reference: AbsolutePath | None = Field(None, description="the frozen model's rollouts")
    cache_dir: AbsolutePath = Path("~/.cache/equipoise").expanduser()
    generations: int = Field(1, ge=1, description="replies to a prompt that are scored together")
    deadline_seconds: float = Field(
        1800.0, gt=0, allow_inf_nan=False, description="from the first rollout of a set on"
    )


def open_environment(settings: RewardSettings) -> Environment:
    """Build the environment, ask its models, give it its reference. Raises what is wrong."""
    cache = str(settings.cache_dir)
    environment = build_environment(settings.environment, settings.settings, cache)
    environment.sources()  # opened now, and not by the first rollout
    if problem := environment.check():
        raise EquipoiseError("rewards.no-service", problem, "Check equipoise.settings.")
    if environment.reference_generations:
        if settings.reference is None:
            raise UsageError(
                "rewards.no-reference",
                f"{environment.name} compares with the frozen model, whose rollouts are not there",
                "Name them in equipoise.reference: reference.jsonl of a run or an evaluation.",
            )
        check_part(settings.reference)
        environment.set_reference(read_rollouts(settings.reference))
    return environment


def groups_of(records: Sequence[PromptRecord], scope: str) -> dict[str, list[PromptRecord]]:
    """The prompts of each set; of each prompt where a failed score needs its siblings alone."""
    groups: dict[str, list[PromptRecord]] = {}
    for record in records:
        groups.setdefault(record.set_id if scope == "set" else record.id, []).append(record)
    return groups


class Scorer:
    """Scores groups of rollouts in one thread; one event loop uses it.

    Those that come while a call runs are scored together by the next one: another model is asked
    as many questions at once as it would be in a step of training.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._waiting: list[tuple[str, Sequence[Rollout], asyncio.Future[list[Score]]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")

    async def score(self, group: str, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores in order; an error of the environment is the failure of each."""
        scores: asyncio.Future[list[Score]] = asyncio.get_running_loop().create_future()
        self._waiting.append((group, rollouts, scores))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await scores

    async def _work(self) -> None:
        while self._waiting:
            # One part of each group: two of them would be taken for one.
            parts = {part[0]: part for part in reversed(self._waiting)}
            self._waiting = [part for part in self._waiting if part is not parts[part[0]]]
            batches = [rollouts for _, rollouts, _ in parts.values()]
            run = asyncio.get_running_loop().run_in_executor
            scored = await run(self._thread, score_groups, self._environment, batches)
            for (_, _, waiting), scores in zip(parts.values(), scored, strict=True):
                if not waiting.done():
                    waiting.set_result(scores)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def score_groups(environment: Environment, groups: Sequence[Sequence[Rollout]]) -> list[Any]:
    """Score all groups by one call; where that raises, each by its own, so that one alone fails."""
    try:
        rollouts = [rollout for group in groups for rollout in group]
        scores = iter(score_within_budget(environment, rollouts))
        return [[next(scores) for _ in group] for group in groups]
    except Exception as error:  # noqa: BLE001  the server goes on, and the log has the traceback
        if len(groups) > 1:
            return [score_groups(environment, [group])[0] for group in groups]
        _LOG.exception("%s cannot score %s", environment.name, groups[0][0].prompt_id)
        failure = Failure("verifier_error", f"{type(error).__name__}: {error}")
        return [[Score(None, error=failure)] * len(groups[0])]


@dataclass(frozen=True, slots=True)
class RunTask:
    """A run's task, to be trained on elsewhere; whole groups of prompts are adjacent."""

    environment: Environment
    records: Sequence[PromptRecord]
    reference: Sequence[Rollout]
    settings: dict[str, Any]
    notes: Sequence[str]

    def write_data(self, folder: Path) -> None:
        """Write what `settings` names, in its folder."""
        write_prompts(folder / "data" / "prompts.jsonl", self.records, {"notes": self.notes})
        if self.reference:
            write_rollouts(folder / "data" / "reference.jsonl", self.reference)


def task_of_run(run: RunDirectory, folder: Path) -> RunTask:
    """The prompts to train on and to validate with, for a new `folder`. Raises `EquipoiseError`."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("export.used-folder", f"{folder} is not empty", "Name a new folder.")
    open_run(run.root)
    loaded = load_config(task_of(run), Options((run.config,), stored=True))
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    compares = bool(environment.reference_generations)
    reference = read_rollouts(run.reference) if compares and run.reference.exists() else []
    known = {rollout.set_id for rollout in reference}
    records = [
        record
        for record in read_records(run.prompts)
        if record.split in (TRAIN_SPLIT, VALIDATION_SPLIT) and (record.set_id in known) >= compares
    ]
    if not any(record.split == TRAIN_SPLIT for record in records):
        raise EquipoiseError(
            "export.no-prompt",
            f"{run.root} has no prompt to train on" + " that its reference knows" * compares,
            "Take a run that has begun to train: its reference is of every set.",
        )
    settings = {
        "environment": loaded.config.equipoise.environment,
        "settings": loaded.env_settings.model_dump(mode="json"),
        "prompts": "data/prompts.jsonl",
        "reference": "data/reference.jsonl" if reference else None,
        "generations": loaded.config.grpo.num_generations_per_prompt,
    }
    adjacent = [r for group in groups_of(records, environment.scope).values() for r in group]
    notes = []
    if re.search(r"api_key_env: (?!null)", run.config.read_text(encoding="utf-8")):
        notes.append(_NO_KEY)
    return RunTask(environment, adjacent, reference, settings, notes)


def as_yaml(tree: object) -> str:
    """Return YAML with the keys in their order."""
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def own_requirement(of_checkout: str) -> str:
    """The requirement of this version: `of_checkout` where it runs from one, or its release."""
    is_checkout = (ROOT / "pyproject.toml").exists()
    return of_checkout if is_checkout else f"equipoise=={version('equipoise')}"
