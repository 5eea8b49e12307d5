"""Parts of a run that an export takes: the environment's settings, prompts and reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord, Rollout, Scope
from environments.contract import Environment
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluate.entries import task_of
from equipoise.models.task_environment import make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import open_run, unsealed_note
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import read_rollouts
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class TaskOfRun:
    """A run's task, to be trained on elsewhere."""

    run: RunDirectory
    loaded: LoadedConfig
    environment: Environment
    records: Sequence[PromptRecord]
    reference: Sequence[Rollout] | None
    unsealed: tuple[str, ...]

    @property
    def about(self) -> dict[str, Any]:
        """Say where its prompts come from, for their manifest."""
        return {"from": str(self.run.root), "unsealed": self.unsealed}

    @property
    def notes(self) -> list[str]:
        """Notes on the run's files."""
        return [unsealed_note(self.unsealed)] if self.unsealed else []


def task_of_run(run: RunDirectory, *, unsealed: bool) -> TaskOfRun:
    """The prompts to train on and to validate with. Raises `EquipoiseError` with the remedy."""
    unsealed_parts = open_run(run.root, unsealed=unsealed).unsealed
    loaded = load_config(task_of(run), Options((run.config,)))
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    reference = _reference(run) if environment.reference_generations else None
    records = _chosen(read_records(run.prompts), environment, reference)
    return TaskOfRun(run, loaded, environment, records, reference, unsealed_parts)


def refuse_used_folder(folder: Path) -> None:
    """Raise `UsageError` where something would be mixed with what is there."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "Name a new folder.")


def write_export(
    write: Callable[[Path], list[str]], folder: Path, reporter: Reporter, *, dry_run: bool
) -> None:
    """Write into a new folder and say so; a dry run writes into a scratch one and lists it."""
    if not dry_run:
        reporter.say("\n".join(write(folder)))
        return
    refuse_used_folder(folder)
    with TemporaryDirectory() as scratch:
        lines = write(Path(scratch))
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        rows = [(str(p.relative_to(scratch)), f"{p.stat().st_size / 1e3:,.1f} kB") for p in files]
    columns = [Column("file", folds=True), Column("size")]
    reporter.table(f"What would be written to {folder}", columns, rows)
    reporter.say("\n".join(lines).replace(scratch, str(folder)))


def group_of(record: PromptRecord, scope: Scope) -> str:
    """The set, or the prompt: a failed score takes the mean of its prompt's other rollouts."""
    return record.set_id if scope == "set" else record.id


def own_requirement() -> tuple[Path | None, str]:
    """The checkout that this runs from, if it does from one, and the requirement of its version."""
    checkout = _ROOT if (_ROOT / "pyproject.toml").exists() else None
    return checkout, f"equipoise=={version('equipoise')}"


def _reference(run: RunDirectory) -> list[Rollout]:
    if not run.reference.exists():
        raise EquipoiseError(
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
            "no prompt to train on is left" + (", the reference knows none" if reference else ""),
            "Take a run that has begun to train: its reference is of every set.",
        )
    groups: dict[str, list[PromptRecord]] = {}
    for record in chosen:
        groups.setdefault(group_of(record, environment.scope), []).append(record)
    return [record for group in groups.values() for record in group]
