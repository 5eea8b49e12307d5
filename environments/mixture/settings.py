"""The settings of a mixture: its tasks, their weights and the scales of their rewards."""

import hashlib
import importlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from environments.base import TRAIN_SPLIT, PromptRecord, Rollout
from environments.contract import Environment, EnvironmentSettings, RoundPart

#: Replies of the frozen model to a prompt from which a scale is measured, where no task wants more.
SCALE_GENERATIONS = 8
#: Training prompts of each task whose replies a scale is measured from, at most.
_SCALE_PROMPTS = 128


class MixedTask(BaseModel, extra="forbid", frozen=True):
    """One task of a mixture."""

    environment: str = Field(description="module and class, as in equipoise.environment")
    weight: int = Field(ge=1, description="prompts of a round, in proportion to the others'")
    scale: float | None = Field(
        None, gt=0, description="divides its rewards; null: their spread before training"
    )
    #: the keys of its `env` section
    settings: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        _ = self.environment_settings
        return self

    @cached_property
    def environment_class(self) -> type[Environment]:
        """The class of its environment. Raises `ValueError` where there is none."""
        module, _, name = self.environment.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except (ImportError, ValueError) as error:
            raise ValueError(f"cannot import {self.environment}: {error}") from None
        if not (isinstance(found, type) and issubclass(found, Environment)):
            raise ValueError(f"{self.environment} is no environment: name a class that is one")
        return found

    @cached_property
    def environment_settings(self) -> EnvironmentSettings:
        """The settings of its environment. Raises `ValueError` with the first that is wrong."""
        try:
            return self.environment_class.Settings.model_validate(dict(self.settings))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, ("settings", *first["loc"])))
            raise ValueError(f"{key}: {first['msg']}") from None

    @property
    def set_size(self) -> int:
        """Variants of a counterfactual set; 1 for a task without sets."""
        return self.environment_settings.set_size or self.environment_class.set_size


class MixtureSettings(EnvironmentSettings, extra="forbid", frozen=True):
    """The keys of `env.mixture` in the configuration."""

    tasks: Mapping[str, MixedTask | None] = Field(
        default_factory=dict,
        description="by name: environment, weight, scale, settings; null leaves one out",
    )

    @property
    def mixed(self) -> dict[str, MixedTask]:
        """The tasks that are not left out."""
        return {name: task for name, task in self.tasks.items() if task}

    @model_validator(mode="after")
    def _can_be_mixed(self) -> Self:
        if not self.tasks:  # the environment refuses it
            return self
        if len(self.mixed) < 2:
            raise ValueError("a mixture has at least two tasks; name them under tasks")
        sizes = {task.set_size for task in self.mixed.values()} - {1}
        if len(sizes) > 1:
            raise ValueError(
                f"sets of {' and of '.join(map(str, sorted(sizes)))} prompts do not fill one "
                "round: leave a task out (null)"
            )
        if nested := [name for name, task in self.mixed.items() if task.environment_settings.round]:
            raise ValueError(f"{nested[0]} is a mixture itself: name its tasks here")
        return self

    @cached_property
    def round(self) -> Mapping[str, RoundPart]:
        """Each task's prompts of a round: by weight, as few as are whole sets.

        A round as a whole is a multiple of a set too, so that any batch of rounds is.
        """
        tasks = self.mixed
        if not tasks:
            return {}
        size = max(task.set_size for task in tasks.values())
        total = sum(task.weight for task in tasks.values())
        needed = [math.lcm(task.weight, task.set_size) // task.weight for task in tasks.values()]
        times = math.lcm(*needed, math.lcm(total, size) // total)
        return {name: RoundPart(times * task.weight, task.set_size) for name, task in tasks.items()}

    @property
    def set_size(self) -> int | None:
        """The prompts of a round."""
        return sum(part.prompts for part in self.round.values()) or None

    @property
    def scoring_classes(self) -> Sequence[type]:
        """Those of the tasks."""
        return [task.environment_class for task in self.mixed.values()]

    @property
    def least_generations(self) -> int:
        """As many as the task that compares most."""
        tasks = self.mixed.values()
        return max((task.environment_settings.least_generations for task in tasks), default=1)

    @property
    def reference_size(self) -> int:
        """As many as the task that wants most, and enough to measure a scale by."""
        tasks = self.mixed.values()
        measured = any(task.scale is None for task in tasks)
        sizes = [task.environment_settings.reference_size for task in tasks]
        return max([*sizes, SCALE_GENERATIONS * measured])

    def reference_prompts(self, records: Sequence[PromptRecord]) -> Sequence[PromptRecord]:
        """All prompts of a task that compares with a reference; of another one those of training.

        Where no task deals out replies they have no use but the scale, which takes a sample.
        """
        classes = [task.environment_class for task in self.mixed.values()]
        dealing = any(environment.offers(Environment.dealt_replies) for environment in classes)
        needed: set[str] = set()
        for name, task in self.mixed.items():
            mine = [record for record in records if record.task == name]
            if not task.environment_settings.reference_size:
                train = [record for record in mine if record.split == TRAIN_SPLIT]
                sets = scale_sets(train) if task.scale is None else set()
                mine = train if dealing else [r for r in train if r.set_id in sets]
            needed |= {record.id for record in mine}
        return [record for record in records if record.id in needed]

    @property
    def stand_in(self) -> str | None:
        """Those of the tasks."""
        notes = {name: task.environment_settings.stand_in for name, task in self.mixed.items()}
        return "; ".join(f"{name}: {note}" for name, note in notes.items() if note) or None

    def model_calls(self, records: Sequence[PromptRecord], generations: int) -> int:
        """Those of the tasks, each for its share of the completions."""
        total = 0
        for name, task in self.mixed.items():
            mine = [record for record in records if record.task == name]
            share = -(-generations * len(mine) // max(1, len(records)))
            total += task.environment_settings.model_calls(mine, share)
        return total


def scale_sets(prompts: Sequence[PromptRecord | Rollout]) -> set[str]:
    """The sets that a task's scale is measured from, as if drawn by chance, of its training."""
    by_set: dict[str, set[str]] = {}
    for prompt in prompts:
        if prompt.split == TRAIN_SPLIT:
            name = prompt.id if isinstance(prompt, PromptRecord) else prompt.prompt_id
            by_set.setdefault(prompt.set_id, set()).add(name)
    chosen: set[str] = set()
    number = 0
    # The file's order is that of the task, which may have a kind of prompt after the other.
    for set_id in sorted(by_set, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if number >= _SCALE_PROMPTS:
            break
        chosen.add(set_id)
        number += len(by_set[set_id])
    return chosen
