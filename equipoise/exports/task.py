"""The parts of a run that an export takes: settings of the environment, prompts, reference."""

import asyncio
import logging
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import yaml
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from pydantic import BaseModel, Field

from data_prep.files import write_text
from data_prep.records import write_prompts
from environments.addresses import AbsolutePath
from environments.base import (
    TRAIN_SPLIT,
    VALIDATION_SPLIT,
    Failure,
    PromptRecord,
    Rollout,
    Scope,
    Score,
)
from environments.contract import Environment
from environments.errors import code_of
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluate.entries import task_of
from equipoise.models.task_environment import build_environment, make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import read_rollouts, write_rollouts
from equipoise.run.seals import COPY, check_part, open_run, unsealed_note
from equipoise.train.stages.job import score_within_budget

# --- rewards --------------------------------------------------------------------------------------
# A task's rewards for other libraries: the environment of an export, and a queue before it.
#
# An environment keeps state (an index, a policy, a client with its cache), so one thread calls it.
# Parts that come while a call runs are scored together by the next one: another model is asked as
# many questions at once as it would be in a step of training.


_LOG = logging.getLogger(__name__)
#: Settings that an export has as paths below its own folder.
_PATHS = ("prompts", "reference", "answers")
_REMEDY = "Check what equipoise.settings names, and that it is there."


class RewardSettings(BaseModel, extra="forbid", frozen=True):
    """The settings of the rewards that an export gives."""

    environment: str = Field(description="package.module.Class of the environment")
    settings: dict[str, Any] = Field(default_factory=dict, description="its env.<name>")
    prompts: AbsolutePath = Field(description="prompts.jsonl, with its manifest beside it")
    reference: AbsolutePath | None = Field(None, description="the frozen model's rollouts")
    cache_dir: AbsolutePath = Path("~/.cache/equipoise").expanduser()

    @classmethod
    def below(cls, folder: Path, section: Mapping[str, Any]) -> Self:
        """The settings of an export; their paths are below its folder."""
        paths = {name: folder / section[name] for name in _PATHS if section.get(name)}
        return cls.model_validate({**section, **paths})


def open_environment(settings: RewardSettings) -> Environment:
    """The environment. Raises `EquipoiseError` with the remedy.

    What it scores with is opened and asked now, and not by the first rollout.
    """
    environment = build_environment(
        settings.environment, settings.settings, str(settings.cache_dir)
    )
    try:
        environment.sources()
    except ValueError as error:
        raise EquipoiseError(
            code_of(error, "rewards.invalid-settings"), str(error), _REMEDY
        ) from error
    if problem := environment.check():
        raise EquipoiseError("rewards.no-service", problem, _REMEDY)
    return environment


def give_reference(environment: Environment, settings: RewardSettings) -> None:
    """Show the environment what it compares with. Raises `UsageError` where that is not named."""
    if not environment.reference_generations:
        return
    if settings.reference is None:
        raise UsageError(
            "rewards.no-reference",
            f"{environment.name} compares with the frozen model, whose rollouts are not there",
            "Name them in equipoise.reference: reference.jsonl of a run or an evaluation.",
        )
    check_part(settings.reference, otherwise=COPY)
    environment.set_reference(read_rollouts(settings.reference))


def group_of(record: PromptRecord, scope: Scope) -> str:
    """The set, or the prompt: a failed score takes the mean of its prompt's other rollouts."""
    return record.set_id if scope == "set" else record.id


# --- The queue ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rollouts that must be scored together: of one set, or of one prompt."""

    group: str
    rollouts: Sequence[Rollout]
    scores: asyncio.Future[list[Score]]


@dataclass(slots=True)
class Scorer:
    """Scores parts as they come; one event loop uses it."""

    environment: Environment
    _waiting: list[_Part] = field(init=False, default_factory=list)
    _worker: asyncio.Task[None] | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")

    async def score(self, group: str, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores in order; an error of the environment is the failure of each."""
        part = _Part(group, rollouts, asyncio.get_running_loop().create_future())
        self._waiting.append(part)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await part.scores

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # One part of each group: two of them would be taken for one.
            first = {part.group: part for part in reversed(self._waiting)}
            self._waiting = [part for part in self._waiting if part is not first[part.group]]
            parts = list(first.values())
            batches = [part.rollouts for part in parts]
            scored = await loop.run_in_executor(
                self._thread, score_parts, self.environment, batches
            )
            for part, scores in zip(parts, scored, strict=True):
                if not part.scores.done():
                    part.scores.set_result(scores)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def score_parts(environment: Environment, parts: Sequence[Sequence[Rollout]]) -> list[list[Score]]:
    """The scores of each part, by one call; where that raises, by one for each of them.

    So one part at which the environment raises costs no other its scores.
    """
    try:
        scores = iter(
            score_within_budget(environment, [rollout for part in parts for rollout in part])
        )
        return [[_finite(next(scores)) for _ in part] for part in parts]
    except Exception as error:  # noqa: BLE001  the server goes on, and the log has the traceback
        if len(parts) > 1:
            return [score_parts(environment, [part])[0] for part in parts]
        _LOG.exception("%s cannot score %s", environment.name, parts[0][0].prompt_id)
        failure = Failure("verifier_error", f"{type(error).__name__}: {error}")
        return [[Score(None, error=failure)] * len(parts[0])]


def _finite(score: Score) -> Score:
    """The score, or a failure where it is no number that JSON and a trainer can take."""
    if score.value is None or math.isfinite(score.value):
        return score
    return Score(None, error=Failure("verifier_error", f"the score is {score.value}"))


# --- task -----------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]
_NO_KEY = (
    "the run's model has a key, which is read where your own file names its variable: write "
    "api_key_env into the settings of this export"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """A run's task, to be trained on elsewhere."""

    run: RunDirectory
    loaded: LoadedConfig
    environment: Environment
    records: Sequence[PromptRecord]
    reference: Sequence[Rollout] | None
    unsealed: tuple[str, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its rewards, with paths below the folder that `write_data` fills."""
        return {
            "environment": self.loaded.config.equipoise.environment,
            "settings": self.loaded.env_settings.model_dump(mode="json"),
            "prompts": "data/prompts.jsonl",
            "reference": None if self.reference is None else "data/reference.jsonl",
        }

    def write_data(self, folder: Path) -> None:
        """Write the prompts, with where they come from, and the reference."""
        about = {"from": str(self.run.root), "unsealed": self.unsealed}
        write_prompts(folder / "data" / "prompts.jsonl", self.records, about)
        if self.reference is not None:
            write_rollouts(folder / "data" / "reference.jsonl", self.reference)

    @property
    def notes(self) -> list[str]:
        """Notes on the run's files, and on keys, which no run folder names."""
        unsealed = [unsealed_note(self.unsealed)] if self.unsealed else []
        named = re.search(r"api_key_env: (?!null)", self.run.config.read_text(encoding="utf-8"))
        return unsealed + ([_NO_KEY] if named else [])


def task_of_run(run: RunDirectory, *, unsealed: bool) -> Exported:
    """The prompts to train on and to validate with. Raises `EquipoiseError` with the remedy."""
    unsealed_parts = open_run(run.root, unsealed=unsealed).unsealed
    loaded = load_config(task_of(run), Options((run.config,), stored=True))
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    reference = None
    if environment.reference_generations:
        if not run.reference.exists():
            raise EquipoiseError(
                "export.no-reference",
                f"{run.root} has no reference.jsonl, with which the environment compares",
                "Take a run that has begun to train, or an evaluation.",
            )
        reference = read_rollouts(run.reference)
    records = _chosen(read_records(run.prompts), environment, reference)
    return Exported(run, loaded, environment, records, reference, unsealed_parts)


def refuse_used_folder(folder: Path) -> None:
    """Raise `UsageError` where something would be mixed with what is there."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("export.used-folder", f"{folder} is not empty", "Name a new folder.")


def render(template: str, path: Path, **words: Any) -> None:
    """Write a file of an export, made of a template of this package."""
    templates = Templates(  # noqa: S701  code and YAML
        loader=PackageLoader("equipoise.exports"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.filters["yaml"] = as_yaml
    write_text(path, templates.get_template(f"{template}.j2").render(words))


def as_yaml(tree: object) -> str:
    """Return YAML with the keys in their order."""
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def own_requirement(of_checkout: str) -> str:
    """The requirement of this version: `of_checkout` where it runs from one, or its release."""
    is_checkout = (ROOT / "pyproject.toml").exists()
    return of_checkout if is_checkout else f"equipoise=={version('equipoise')}"


def _chosen(
    records: Sequence[PromptRecord], environment: Environment, reference: Sequence[Rollout] | None
) -> list[PromptRecord]:
    """The prompts to train on and to validate with, whole groups adjacent.

    With a reference, only prompts of sets that it has.
    """
    chosen = [record for record in records if record.split in (TRAIN_SPLIT, VALIDATION_SPLIT)]
    if reference is not None:
        set_ids = {rollout.set_id for rollout in reference}
        chosen = [record for record in chosen if record.set_id in set_ids]
    if not any(record.split == TRAIN_SPLIT for record in chosen):
        raise EquipoiseError(
            "export.no-prompt",
            "no prompt to train on is left" + (", the reference knows none" if reference else ""),
            "Take a run that has begun to train: its reference is of every set.",
        )
    groups: dict[str, list[PromptRecord]] = {}
    for record in chosen:
        groups.setdefault(group_of(record, environment.scope), []).append(record)
    return [record for group in groups.values() for record in group]
