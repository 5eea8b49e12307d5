"""The environment of an export, ready to score."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from environments.addresses import AbsolutePath
from environments.base import Rollout
from environments.contract import Environment
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.task_environment import build_environment
from equipoise.run.kept_files import COPY, check_part
from equipoise.run.rollouts import read_rollouts

_REMEDY = "Check what equipoise.settings names, and that it is there."


class RewardSettings(BaseModel, extra="forbid", frozen=True):
    """The settings of the rewards that an export gives."""

    environment: str = Field(description="package.module.Class of the environment")
    settings: dict[str, Any] = Field(default_factory=dict, description="its env.<name>")
    prompts: AbsolutePath = Field(description="prompts.jsonl, with its manifest beside it")
    reference: AbsolutePath | None = Field(None, description="the frozen model's rollouts")
    cache_dir: AbsolutePath = Path("~/.cache/equipoise").expanduser()


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
        raise EquipoiseError(str(error), _REMEDY) from error
    if problem := environment.check():
        raise EquipoiseError(problem, _REMEDY)
    return environment


def give_reference(environment: Environment, settings: RewardSettings) -> None:
    """Show the environment what it compares with. Raises `UsageError` where that is not named."""
    if environment.reference_generations:
        environment.set_reference(_reference(settings, environment.name))


def _reference(settings: RewardSettings, name: str) -> list[Rollout]:
    if settings.reference is None:
        raise UsageError(
            f"{name} compares with the frozen model, whose rollouts are not there",
            "Name them in equipoise.reference: reference.jsonl of a run or an evaluation.",
        )
    check_part(settings.reference, otherwise=COPY)
    return read_rollouts(settings.reference)
