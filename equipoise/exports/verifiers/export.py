"""The package of a run's task for verifiers.

    FOLDER/
        pyproject.toml
        equipoise_TASK/__init__.py          the taskset, the agents, the harness
        equipoise_TASK/settings.yaml        what is scored, and with what
        equipoise_TASK/data/prompts.jsonl, reference.jsonl

`verifiers` finds it by the name of the package.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from data_prep.files import write_text
from data_prep.records import write_prompts
from environments.base import TRAIN_SPLIT, PromptRecord, Scope
from equipoise.errors import UsageError
from equipoise.exports.rewards.of_run import (
    TaskOfRun,
    group_of,
    own_requirement,
    refuse_used_folder,
    task_of_run,
)
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import write_rollouts

VERIFIERS = "verifiers==0.4.0"
_PROJECT = """\
[project]
name = "{name}"
version = "{version}"
description = "Rewards of Equipoise's {environment}"
requires-python = ">=3.11"
dependencies = ["{verifiers}", "{ours}"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
_PACKAGE = '''\
"""Rewards of Equipoise's {environment}, for verifiers."""

from pathlib import Path

import verifiers.v1 as vf

from equipoise.exports.verifiers.asking import AskOnce
from equipoise.exports.verifiers.episode import IN_THIS_PROCESS, EpisodeConfig, EpisodeEnv
from equipoise.exports.verifiers.taskset import PromptsTaskset

__all__ = ["AskOnce", "Prompts", "Rewards"]
_HERE = Path(__file__).parent


class Prompts(PromptsTaskset):
    """{tasks:,} tasks to train on."""

    FOLDER = _HERE


class Agents(EpisodeConfig):
    """One agent for each prompt whose replies are scored together; all are one model."""

{agents}
    generations: int = {generations}


class Rewards(EpisodeEnv, vf.Env[Agents]):
    """The replies of an episode, scored by one call."""

    FOLDER = _HERE
'''


def export(run: RunDirectory, folder: Path, *, unsealed: bool = False) -> list[str]:
    """Write the package; return what there is to say of it. Raises `EquipoiseError`."""
    refuse_used_folder(folder)
    task = task_of_run(run, unsealed=unsealed)
    name = f"equipoise-{task.environment.name}"
    package = folder / name.replace("-", "_")
    config = task.loaded.config
    generations = config.grpo.num_generations_per_prompt
    alone = task.environment.scope == "rollout"
    agents = agents_of(task.records, task.environment.scope)

    write_prompts(package / "data" / "prompts.jsonl", task.records, task.about)
    if task.reference is not None:
        write_rollouts(package / "data" / "reference.jsonl", task.reference)
    write_text(package / "settings.yaml", _settings(task))
    checkout, released = own_requirement()
    words = {
        "name": name,
        "version": released.rpartition("=")[2],
        "environment": config.equipoise.environment,
        "package": package.name,
        "verifiers": VERIFIERS,
        "ours": f"equipoise @ {checkout.as_uri()}" if checkout else released,
        "tasks": sum(record.split == TRAIN_SPLIT for record in task.records) // len(agents),
        "agents": "\n".join(f"    {a}: vf.AgentConfig = IN_THIS_PROCESS" for a in agents),
        "generations": 1 if alone else generations,
    }
    write_text(folder / "pyproject.toml", _PROJECT.format(**words))
    write_text(package / "__init__.py", _PACKAGE.format(**words))
    return [
        f"{folder}: {package.name}, {len(task.records):,} prompts to train on and to validate with",
        f"prime-rl: {_advice(agents, generations, alone=alone)}",
        *task.notes,
    ]


def agents_of(records: Sequence[PromptRecord], scope: Scope) -> list[str]:
    """The names of an episode's agents. Raises `UsageError` where sets are of several sizes."""
    if scope != "set":
        return ["agent"]
    sizes = set(Counter(group_of(record, scope) for record in records).values())
    if len(sizes) > 1:
        raise UsageError(
            f"the sets have {', '.join(map(str, sorted(sizes)))} prompts: an episode has one agent"
            " for each prompt",
            "Take a run whose sets are all of one size.",
        )
    return [f"variant_{n + 1}" for n in range(sizes.pop())]


def _settings(task: TaskOfRun) -> str:
    settings = {
        "environment": task.loaded.config.equipoise.environment,
        "settings": task.loaded.env_settings.model_dump(mode="json"),
        "prompts": "data/prompts.jsonl",
        "reference": None if task.reference is None else "data/reference.jsonl",
        "sets": task.environment.scope == "set",
    }
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _advice(agents: Sequence[str], generations: int, *, alone: bool) -> str:
    """With what a reward's baseline is the mean of its prompt's replies."""
    if alone:
        return f"algorithm grpo, group_size {generations}"
    names = ", ".join(f'"{agent}"' for agent in agents)
    return f"algorithm hierarchical_grpo, episode_agents [{names}], group_size 1"
