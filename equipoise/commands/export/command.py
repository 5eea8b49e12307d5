"""`equipoise export gym` and `equipoise export verifiers`."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Annotated

import yaml

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT
from equipoise.commands.export.task import REQUIREMENT, ROOT, groups_of, task_of_run, write_yaml
from equipoise.config.load import import_own_code, set_size
from equipoise.config.words import OwnCode, RunFolder, option
from equipoise.files.console import Reporter
from equipoise.files.disk import write_jsonl, write_text
from equipoise.files.errors import UsageError
from equipoise.run.directory import RunDirectory


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
