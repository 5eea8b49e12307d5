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
from importlib.metadata import version
from pathlib import Path

from data_prep.files import write_text
from environments.base import TRAIN_SPLIT, PromptRecord, Scope
from equipoise.errors import UsageError
from equipoise.exports.task import (
    ROOT,
    as_yaml,
    group_of,
    own_requirement,
    refuse_used_folder,
    render,
    task_of_run,
)
from equipoise.run.directory import RunDirectory

VERIFIERS = "verifiers==0.4.0"


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

    task.write_data(package)
    settings = task.settings | {"sets": task.environment.scope == "set"}
    write_text(package / "settings.yaml", as_yaml(settings))
    words = {
        "name": name,
        "version": version("equipoise"),
        "environment": config.equipoise.environment,
        "package": package.name,
        "verifiers": VERIFIERS,
        "equipoise": own_requirement(f"equipoise @ {ROOT.as_uri()}"),
        "tasks": sum(record.split == TRAIN_SPLIT for record in task.records) // len(agents),
        "agents": agents,
        "generations": 1 if alone else generations,
    }
    # The keys of a source of prime-rl with which a reward's baseline is its prompt's mean.
    advice = 'algo.type = "grpo", group_size = 1, env.centered = true'
    if alone:
        advice = f'algo.type = "grpo", group_size = {generations}; batch_size a multiple of it'
    render("verifiers_project.toml", folder / "pyproject.toml", **words)
    render("verifiers_package.py", package / "__init__.py", **words)
    return [
        f"{folder}: {package.name}, {len(task.records):,} prompts to train on and to validate with",
        f"prime-rl: {advice}",
        *task.notes,
    ]


def agents_of(records: Sequence[PromptRecord], scope: Scope) -> list[str]:
    """The names of an episode's agents. Raises `UsageError` where sets are of several sizes."""
    if scope != "set":
        return ["agent"]
    sizes = set(Counter(group_of(record, scope) for record in records).values())
    if len(sizes) > 1:
        raise UsageError(
            "verifiers.uneven-sets",
            f"the sets have {', '.join(map(str, sorted(sizes)))} prompts: an episode has one agent"
            " for each prompt",
            "Take a run whose sets are all of one size.",
        )
    return [f"variant_{n + 1}" for n in range(sizes.pop())]
