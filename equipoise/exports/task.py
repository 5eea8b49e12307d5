"""The parts of a run that an export takes: settings of the environment, prompts, reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from data_prep.files import write_text
from data_prep.records import write_prompts
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord, Rollout
from environments.contract import Environment
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluate.entries import task_of
from equipoise.exports.rewards import group_of
from equipoise.models.task_environment import make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import open_run, unsealed_note
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import read_rollouts, write_rollouts

ROOT = Path(__file__).resolve().parents[2]


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
        """Notes on the run's files."""
        return [unsealed_note(self.unsealed)] if self.unsealed else []


def task_of_run(run: RunDirectory, *, unsealed: bool) -> Exported:
    """The prompts to train on and to validate with. Raises `EquipoiseError` with the remedy."""
    unsealed_parts = open_run(run.root, unsealed=unsealed).unsealed
    loaded = load_config(task_of(run), Options((run.config,)))
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    reference = _reference(run) if environment.reference_generations else None
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


def _reference(run: RunDirectory) -> list[Rollout]:
    if not run.reference.exists():
        raise EquipoiseError(
            "export.no-reference",
            f"{run.root} has no reference.jsonl, with which the environment compares",
            "Take a run that has begun to train, or an evaluation.",
        )
    return read_rollouts(run.reference)


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
