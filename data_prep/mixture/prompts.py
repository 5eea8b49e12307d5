"""The prompts of a mixture: those of its tasks, each made by the task's own data module."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from data_prep.contract import CheckRow, DataModule, DataSettings, Tools, hook_problems
from data_prep.text_files import named_faults
from environments.base import VALIDATION_SPLIT, PromptRecord
from environments.contract import Environment, RoundPart
from environments.mixture import MixtureEnvironment, MixtureSettings
from environments.mixture.environment import TASK_KEY


class TaskPrompts(BaseModel, extra="allow", frozen=True):
    """One task's data module, and the keys of its `equipoise.data`."""

    module: str = Field(description="as equipoise.data.module of the task alone")

    def prompt_settings(self, num_samples: int | None) -> DataSettings:
        """Its settings. Raises `ValueError` with the first that is wrong."""
        keys: dict[str, Any] = dict(self.model_extra or {})
        if num_samples is not None:
            keys["num_samples"] = num_samples
        try:
            return data_module(self.module).PromptSettings.model_validate(keys)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def data_module(name: str) -> DataModule:
    """The data module of this name. Raises `ValueError` where there is none."""
    try:
        module = importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"cannot import {name}: {error}") from None
    if faults := list(hook_problems(module)):
        raise ValueError(f"{name}: {faults[0]} (see data_prep/contract.py)")
    return DataModule(module)


class PromptSettings(DataSettings, extra="forbid", frozen=True):
    """Which prompts the tasks bring; how many of each are in a step is said by their weights."""

    num_samples: int | None = Field(
        None, ge=1, description="prompts made of each task; null: as many as each says"
    )
    tasks: Mapping[str, TaskPrompts] = Field(
        default_factory=dict, description="by name: the data module and its keys"
    )
    mixed: Mapping[str, Any] = Field(
        default_factory=dict, description="env.mixture.tasks: what is mixed, by which weights"
    )

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if not self.mixed:
            raise ValueError("mixed names no task: it is ${env.mixture.tasks}")
        if not (mixed := self.mixture.mixed):
            return self
        if unknown := sorted(self.tasks.keys() - self.mixed.keys()):
            raise ValueError(
                f"{unknown[0]} is no task of env.mixture.tasks; it has {', '.join(mixed)}"
            )
        if missing := sorted(mixed.keys() - self.tasks.keys()):
            raise ValueError(f"{missing[0]} has no data module: name one in tasks.{missing[0]}")
        for name, settings in self.settings.items():
            if settings.no_training:
                raise ValueError(f"tasks.{name}: {settings.no_training}")
        return self

    @cached_property
    def settings(self) -> dict[str, DataSettings]:
        """Each mixed task's own settings. Raises `ValueError` for one that is wrong."""
        settings = {}
        for name in self.mixture.mixed:
            try:
                settings[name] = self.tasks[name].prompt_settings(self.num_samples)
            except ValueError as error:
                raise ValueError(f"tasks.{name}: {error}") from None
        return settings

    @property
    def modules(self) -> dict[str, DataModule]:
        """Each mixed task's data module."""
        return {name: data_module(self.tasks[name].module) for name in self.settings}

    @cached_property
    def mixture(self) -> MixtureSettings:
        """The tasks and their weights; none where `env.mixture`, the same keys, is refused."""
        try:
            return MixtureSettings.model_validate({"tasks": self.mixed})
        except ValidationError:
            return MixtureSettings()

    @property
    def round(self) -> Mapping[str, RoundPart]:
        """Each task's prompts of a round."""
        return self.mixture.round

    @property
    def invented(self) -> bool | None:
        """Whether those of every task are; not known where it is not of one."""
        answers = {settings.invented for settings in self.settings.values()}
        return False if False in answers else None if None in answers else True

    @property
    def no_local_model(self) -> str:
        """The first task's reason."""
        reasons = (
            f"{name}: {settings.no_local_model}"
            for name, settings in self.settings.items()
            if settings.no_local_model
        )
        return next(reasons, "")

    @property
    def chosen(self) -> Sequence[str]:
        """The choices of all tasks."""
        return [f"{name}: {line}" for name, part in self.settings.items() for line in part.chosen]


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The prompts of all tasks, those in sets first, with the name of its task in each.

    The validation split is whole rounds, one after the other, so that any part of it is mixed as
    the steps are; prompts that fill no round are left out of it. Raises `ValueError` for a task
    whose prompts cannot be made or used.
    """
    modules, round_parts = settings.modules, settings.round
    records: list[PromptRecord] = []
    for name in sorted(modules, key=lambda task: -round_parts[task].set_size):
        task_records = modules[name].build_prompts(settings.settings[name])
        if problems := modules[name].prompt_problems(task_records):
            raise ValueError(f"{name}: {problems[0]}")
        records += [
            replace(
                record,
                id=f"{name}/{record.id}",  # ids of two tasks never meet
                set_id=f"{name}/{record.set_id}",
                task=name,
                metadata={**record.metadata, TASK_KEY: name},
            )
            for record in task_records
        ]
    validation = [record for record in records if record.split == VALIDATION_SPLIT]
    others = [record for record in records if record.split != VALIDATION_SPLIT]
    return [*others, *in_rounds(validation, round_parts)]


def in_rounds(
    records: Sequence[PromptRecord], round_parts: Mapping[str, RoundPart]
) -> list[PromptRecord]:
    """The records in whole rounds, sets first; what fills none is left out."""
    queues = {name: [r for r in records if r.task == name] for name in round_parts}
    rounds = min(len(queues[name]) // part.prompts for name, part in round_parts.items())
    in_order = sorted(round_parts, key=lambda task: -round_parts[task].set_size)
    return [
        record
        for n in range(rounds)
        for name in in_order
        for record in queues[name][n * round_parts[name].prompts :][: round_parts[name].prompts]
    ]


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """Find prompts whose metadata do not name their task."""
    nameless = [record.id for record in records if record.metadata.get(TASK_KEY) != record.task]
    return named_faults({f"prompts lack their task as metadata.{TASK_KEY}": nameless})


def prepare(settings: PromptSettings, tools: Tools) -> None:
    """Let each task make what its prompts need."""
    for name, module in settings.modules.items():
        module.prepare(settings.settings[name], tools)


def check(
    settings: PromptSettings, records: Sequence[PromptRecord], environment: Environment
) -> list[CheckRow]:
    """The parts of a round, then what each task finds in its parts."""
    assert isinstance(environment, MixtureEnvironment)
    rows = [
        (f"{name} in a round", f"{part.prompts} prompts", f"in sets of {part.set_size}")
        for name, part in settings.round.items()
    ]
    for name, module in settings.modules.items():
        task_records = [record for record in records if record.task == name]
        found = module.check(settings.settings[name], task_records, environment.tasks[name])
        rows += [(f"{name}: {row}", figure, note) for row, figure, note in found]
    return rows
