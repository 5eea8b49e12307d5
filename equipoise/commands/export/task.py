"""`equipoise export gym` and `equipoise export verifiers`: a run's task for others.

First the verbs, then the task of a run and its rewards, as a server of them gives them, then what
each export writes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field

from environments.awaited_sets import AwaitedSets
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, FailureKind, PromptRecord
from environments.contract import Environment
from environments.yaml_file import AbsolutePath
from equipoise.config.load import import_own_code, set_size
from equipoise.config.words import OwnCode, RunFolder, option
from equipoise.files.console import Reporter
from equipoise.files.disk import write_jsonl, write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory, load_stored
from equipoise.run.job import score_within_budget
from equipoise.run.rollouts import read_rollouts
from equipoise.run.seals import open_run
from equipoise.run.task import build_environment, make_environment, read_records

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENT = f"equipoise @ {ROOT.as_uri()}"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Export a run's task: the folder that serves its rewards in NeMo Gym, or verifiers' package.

    It refers to RUN, which has the settings, the prompts and the frozen model's rollouts, and is
    not changed. docs/elsewhere.md says how to go on.

    Examples:
        equipoise export gym results/TASK/RUN --output-dir gym/TASK
        equipoise export verifiers results/TASK/RUN --output-dir verifiers/TASK
    """

    run: RunFolder
    output_dir: Annotated[Path, option("a new folder", "DIR")]
    own_code: OwnCode = None


def gym(options: ExportOptions, reporter: Reporter) -> None:
    """Write the folder for NeMo Gym. Raises `EquipoiseError`."""
    if options.own_code:
        import_own_code(options.own_code)
    reporter.say("\n".join(export_gym(RunDirectory(options.run), options.output_dir)))


def verifiers(options: ExportOptions, reporter: Reporter) -> None:
    """Write the package for verifiers. Raises `EquipoiseError`."""
    if options.own_code:
        import_own_code(options.own_code)
    reporter.say("\n".join(export_verifiers(RunDirectory(options.run), options.output_dir)))


# --- the task of a run ----------------------------------------------------------------------------

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
    """The rewards of replies to a run's prompts, given once all of a set have come.

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
    loaded = load_stored(run)
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


# --- NeMo Gym -------------------------------------------------------------------------------------
# FOLDER/resources_servers/equipoise_TASK/    app.py  requirements.txt
# FOLDER/environments/equipoise_TASK/         manifest.yaml  config.yaml
#                                             data/train.jsonl  data/validation.jsonl
#
# A row names its prompt, and nothing that decides the reward: that stays with the server.


_GYM_APP = Template("""import sys

sys.path.insert(0, "$root")  # NeMo Gym has a package `environments` too
from equipoise.commands.export.gym_server import EquipoiseServer

if __name__ == "__main__":
    EquipoiseServer.run_webserver()
""")
#: Our server, and Gym's own agent, which asks the model once.
_GYM_CONFIG = Template("""
$name: {resources_servers: {$name: {
  entrypoint: app.py, domain: other, verified: false, description: Rewards of Equipoise,
  value: Rewards that were attacked before they were believed, equipoise: $settings}}}
${name}_simple_agent: {responses_api_agents: {simple_agent: {
  entrypoint: app.py, resources_server: {type: resources_servers, name: $name},
  model_server: {type: responses_api_models, name: policy_model}, datasets: $datasets}}}
${name}_environment_server: {environment_servers: {legacy_agent: {
  entrypoint: app.py, agent_server: {type: responses_api_agents, name: ${name}_simple_agent}}}}
""")
_GYM_MANIFEST = Template("""
{name: $name, version: $version, kind: environment, integration_profile: custom-gym-verifier,
 domain: other, description: Rewards of Equipoise, modality: text, authors: [Equipoise],
 reward: {range: $range, higher_is_better: true}, resources_server: $name,
 agent_server: simple_agent, model_server: policy_model, datasets: $datasets}
""")


def export_gym(run: RunDirectory, folder: Path) -> list[str]:
    """Write the folder; return what there is to say of it. Raises `EquipoiseError`."""
    environment, settings = task_of_run(run, folder)
    name = f"equipoise_{environment.name}"
    if (reward_range := environment.reward_range()) is None:
        raise UsageError(
            "gym.no-reward-range",
            f"{name} does not say between what its rewards are, which a manifest must",
            "Give the environment a method reward_range, see environments/contract.py.",
        )
    server, home = folder / "resources_servers" / name, folder / "environments" / name
    groups = groups_of(settings.records(), environment.scope).values()
    datasets = []
    for split in (TRAIN_SPLIT, VALIDATION_SPLIT):
        records = [record for group in groups for record in group if record.split == split]
        rows = [
            {"responses_create_params": {"input": list(r.messages)}, "prompt_id": r.id}
            for r in records
        ]
        if rows:
            path = f"environments/{name}/data/{split}.jsonl"
            write_jsonl(folder / path, rows)
            datasets.append({"name": split, "type": split, "jsonl_fpath": path})
    words = {
        "name": name,
        "root": str(ROOT),
        "version": version("equipoise"),
        "range": list(reward_range),
        "settings": json.dumps(settings.model_dump(mode="json")),
    }
    # Gym asks for a licence of training data; that of these prompts is not known here.
    licensed = [dataset | {"license": "TBD"} for dataset in datasets]
    config = _GYM_CONFIG.substitute(words, datasets=json.dumps(licensed))
    manifest = _GYM_MANIFEST.substitute(words, datasets=json.dumps(datasets))
    write_yaml(home / "config.yaml", yaml.safe_load(config))
    write_yaml(home / "manifest.yaml", yaml.safe_load(manifest))
    write_text(server / "app.py", _GYM_APP.substitute(words))
    write_text(server / "requirements.txt", f"nemo-gym==0.7.0\n{REQUIREMENT}\n")
    return [f"{folder}: {name}, {sum(map(len, groups)):,} prompts to train on and to validate with"]


# --- verifiers ------------------------------------------------------------------------------------
# FOLDER/pyproject.toml
# FOLDER/equipoise_TASK/__init__.py       the taskset, the agents, the harness
# FOLDER/equipoise_TASK/settings.yaml     what is scored, and with what


_PROJECT = Template("""[project]
name = "$name"
version = "$version"
requires-python = ">=3.11"
dependencies = ["verifiers==0.4.0", "$equipoise"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["$package"]
""")
_PACKAGE = Template('''from pathlib import Path

import verifiers.v1 as vf

from equipoise.commands.export import verifiers_episode as episode

__all__ = ["AskOnce", "Prompts", "Rewards"]
AskOnce = episode.AskOnce


class Prompts(episode.PromptsTaskset):
    FOLDER = Path(__file__).parent
    SCOPE = "$scope"


class Agents(episode.EpisodeConfig):
    """One agent for each prompt whose replies are scored together; all are one model."""

$agents
    generations: int = $generations


class Rewards(episode.EpisodeEnv, vf.Env[Agents]):
    FOLDER = Path(__file__).parent
''')


def export_verifiers(run: RunDirectory, folder: Path) -> list[str]:
    """Write the package; return what there is to say of it. Raises `EquipoiseError`."""
    environment, settings = task_of_run(run, folder)
    name, scope = f"equipoise-{environment.name}", environment.scope
    size = set_size(type(environment), environment.settings)
    agents = [f"variant_{n + 1}" for n in range(size)] if scope == "set" else ["agent"]
    generations, package = settings.generations, folder / name.replace("-", "_")
    write_yaml(package / "settings.yaml", settings.model_dump(mode="json"))
    words = {
        "name": name,
        "version": version("equipoise"),
        "package": package.name,
        "equipoise": REQUIREMENT,
        "scope": scope,
        "agents": "\n".join(f"    {a}: vf.AgentConfig = episode.IN_THIS_PROCESS" for a in agents),
        "generations": 1 if scope == "rollout" else generations,
    }
    write_text(folder / "pyproject.toml", _PROJECT.substitute(words))
    write_text(package / "__init__.py", _PACKAGE.substitute(words))
    # The keys of a source of prime-rl with which a reward's baseline is its prompt's mean.
    advice = 'algo.type = "grpo", group_size = 1, env.centered = true'
    if scope == "rollout":
        advice = f'algo.type = "grpo", group_size = {generations}; batch_size a multiple of it'
    prompts = len(settings.records())
    return [
        f"{folder}: {package.name}, {prompts:,} prompts to train on and to validate with",
        f"prime-rl: {advice}",
    ]
