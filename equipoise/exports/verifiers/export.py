"""The package of a run's task for verifiers, which finds it by its name; it refers to the run.

FOLDER/pyproject.toml
FOLDER/equipoise_TASK/__init__.py       the taskset, the agents, the harness
FOLDER/equipoise_TASK/settings.yaml     what is scored, and with what
"""

from importlib.metadata import version
from pathlib import Path
from string import Template

from equipoise.config.task_code import set_size
from equipoise.exports.task import REQUIREMENT, task_of_run, write_yaml
from equipoise.files.disk import write_text
from equipoise.run.directory import RunDirectory

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

from equipoise.exports.verifiers import episode

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


def export(run: RunDirectory, folder: Path) -> list[str]:
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
