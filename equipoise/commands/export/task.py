"""A run's task, as an export names it, and its rewards, as a server of them gives them."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from environments.awaited_sets import AwaitedSets
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, FailureKind, PromptRecord
from environments.contract import Environment
from environments.yaml_file import AbsolutePath
from equipoise.config import Options, load_config
from equipoise.config.load import set_size
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.models.task import build_environment, make_environment, read_records
from equipoise.run.directory import RunDirectory, task_of
from equipoise.run.job import score_within_budget
from equipoise.run.rollouts import read_rollouts
from equipoise.run.seals import open_run

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENT = f"equipoise @ {ROOT.as_uri()}"


#: Failures that have another name in NeMo Gym, see docs/judges.md; what Gym has no name for
#: stands in a name space of its own, as Gym asks for.
GYM_KINDS: Mapping[FailureKind, str] = {
    **dict.fromkeys(("server_error", "rate_limit", "rejected"), "judge_failed"),
    "invalid_reply": "judge_unparseable",
    "policy": "verifier_error",
    "no_comparison": "equipoise:no_comparison",
    "budget": "equipoise:budget",
}


class RewardSettings(BaseModel, extra="forbid", frozen=True):
    """The settings of the rewards that an export gives.

    `environment` is a package.module.Class, `settings` are its env.<name>; `generations` replies to
    a prompt are scored together, within `deadline_seconds` from the first of a set on.
    """

    environment: str
    settings: dict[str, Any]
    run: AbsolutePath
    cache_dir: AbsolutePath
    generations: int = Field(ge=1)
    deadline_seconds: float = Field(default=1800.0, gt=0, allow_inf_nan=False)

    def records(self) -> list[PromptRecord]:
        """Return the prompts to train on and to validate with."""
        splits = (TRAIN_SPLIT, VALIDATION_SPLIT)
        return [r for r in read_records(RunDirectory(self.run).prompts) if r.split in splits]


class Rewards:
    """The rewards of replies to a run's prompts, given when all that is scored together is there.

    Raises `EquipoiseError` where the environment lacks something or a model does not answer.
    """

    def __init__(self, settings: RewardSettings) -> None:
        cache = str(settings.cache_dir)
        environment = build_environment(settings.environment, settings.settings, cache)
        environment.sources()  # opened now, and not by the first rollout
        if problem := environment.check():
            raise EquipoiseError("rewards.no-service", problem, "Check the export's settings.")
        if environment.reference_generations:
            environment.set_reference(read_rollouts(RunDirectory(settings.run).reference))
        self.records = {record.id: record for record in settings.records()}
        self.sets = AwaitedSets(
            partial(score_within_budget, environment),
            scope=environment.scope,
            set_size=set_size(type(environment), environment.settings),
            limit=settings.deadline_seconds,
        )


def groups_of(records: Sequence[PromptRecord], scope: str) -> dict[str, list[PromptRecord]]:
    """Return the prompts of each set, or each prompt where none needs the others of its set."""
    groups: dict[str, list[PromptRecord]] = {}
    for record in records:
        groups.setdefault(record.set_id if scope == "set" else record.id, []).append(record)
    return groups


def task_of_run(run: RunDirectory, folder: Path) -> tuple[Environment, RewardSettings]:
    """Return a run's environment and settings, for a new `folder`. Raises `EquipoiseError`."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("export.used-folder", f"{folder} is not empty", "Name a new folder.")
    open_run(run.root)
    loaded = load_config(task_of(run), Options((run.config,), stored=True))
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    settings = RewardSettings(
        environment=loaded.config.equipoise.environment,
        settings=loaded.env_settings.model_dump(mode="json"),
        run=run.root,
        cache_dir=Path(loaded.config.equipoise.cache_dir),
        generations=loaded.config.grpo.num_generations_per_prompt,
    )
    trained = {record.set_id for record in settings.records() if record.split == TRAIN_SPLIT}
    set_ids = trained
    if environment.reference_generations:
        set_ids = {rollout.set_id for rollout in read_rollouts(run.reference)}
    if not trained or not trained <= set_ids:
        raise EquipoiseError(
            "export.no-prompt",
            f"{run.root} has no prompts to train on, or its reference does not know them all",
            "Take a run that has begun to train.",
        )
    return environment, settings


def write_yaml(path: Path, tree: object) -> None:
    write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
