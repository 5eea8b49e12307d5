"""Prompts as the tasks of verifiers: those whose replies are scored together are one task."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import verifiers.v1 as vf
import yaml

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.exports.rewards.opening import RewardSettings
from equipoise.run.prompts import read_records


class PromptsData(vf.TaskData):
    """The names of the prompts; what decides a reward stays out of the traces."""

    prompt_ids: tuple[str, ...]


class PromptsTask(vf.Task[PromptsData]):
    """Prompts whose replies are scored together, by the environment of the episode."""


class PromptsConfig(vf.TasksetConfig):
    """Which of the exported prompts are asked: those of training, or those of validation."""

    validation: bool = False


class PromptsTaskset(vf.Taskset[PromptsTask, PromptsConfig]):
    """The prompts of an exported package, which names its folder."""

    FOLDER: ClassVar[Path]

    def load(self) -> Iterator[PromptsTask]:
        """One task for each seat of the episode's agents, in the order of the file."""
        split = VALIDATION_SPLIT if self.config.validation else TRAIN_SPLIT
        for records in together(self.FOLDER, split):
            ids = tuple(record.id for record in records)
            yield PromptsTask(PromptsData(id=ids[0], prompt_ids=ids, prompt=[]), self.config.task)


def together(folder: Path, split: str) -> Iterator[Sequence[PromptRecord]]:
    """The prompts of a split that are scored together; the file has them one after the other."""
    settings = settings_of(folder)
    prompts = (r for r in read_records(settings.prompts) if r.split == split)
    if not settings.sets:
        yield from ([record] for record in prompts)
        return
    for _, records in groupby(prompts, key=lambda record: record.set_id):
        yield list(records)


class ExportSettings(RewardSettings, frozen=True):
    """settings.yaml of an exported package."""

    sets: bool


def settings_of(folder: Path) -> ExportSettings:
    """The settings of an exported package; their paths are below it."""
    content = yaml.safe_load((folder / "settings.yaml").read_text("utf-8"))
    paths = {key: folder / content[key] for key in ("prompts", "reference") if content[key]}
    return ExportSettings.model_validate(content | paths)


def messages_of(record: PromptRecord) -> list[vf.Message]:
    """A prompt's messages as verifiers has them. Raises `KeyError` for a role of its own."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    return [kinds[m["role"]](content=m["content"]) for m in record.messages]
