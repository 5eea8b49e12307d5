"""The folder that NeMo Gym starts, made from a run or an evaluation.

    FOLDER/resources_servers/equipoise_TASK/
        app.py  requirements.txt  task_data.py
        data/prompts.jsonl  data/reference.jsonl    what the server reads, beside itself
        data/verifier_cases.jsonl                   replies and their rewards, for Gym to check it
    FOLDER/environments/equipoise_TASK/
        manifest.yaml  config.yaml                  what `gym env validate` and `start` read
        data/train.jsonl  validation.jsonl  example.jsonl

A row names its prompt, and nothing that decides the reward: that stays with the server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from data_prep.files import write_jsonl, write_text
from data_prep.records import write_prompts
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from environments.contract import Environment
from equipoise.config import LoadedConfig
from equipoise.errors import UsageError
from equipoise.exports.gym.fixture import fixture_cases, settings_of
from equipoise.exports.gym.service import ServiceSettings, refuse_small_limit, seats_by_group
from equipoise.exports.rewards.of_run import (
    group_of,
    own_requirement,
    refuse_used_folder,
    task_of_run,
)
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import write_rollouts

NEMO_GYM = "nemo-gym==0.7.0"
_ROOT = Path(__file__).resolve().parents[3]
#: So many prompts, and the rest of their last set, to try a server with.
_EXAMPLES = 5
_APP = '''\
"""The resources server {name}: rewards of Equipoise's {environment}."""

import sys

sys.path.insert(0, {root!r})  # NeMo Gym has a package `environments` too

{imports}from equipoise.exports.gym.server import EquipoiseServer
{fixture}
if __name__ == "__main__":
    EquipoiseServer.run_webserver()
'''
_NO_FIXTURE = {"imports": "", "fixture": ""}
_FIXTURE_IMPORTS = """\
from pathlib import Path

from nemo_gym.verifier_fixture import VerifierFixture

from equipoise.exports.gym.fixture import FixtureRequest, FixtureServer, settings_of
"""
_FIXTURE = """
SERVER = Path(__file__).resolve().parent
VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: FixtureServer(settings_of(SERVER)),
    request_model=FixtureRequest,
    cases_path=SERVER / "data" / "verifier_cases.jsonl",
    reseed=lambda server, request: None,  # nothing is drawn
)
"""
_TASK_DATA = '''\
"""What a row of {name} says besides its messages."""

from pydantic import BaseModel, ConfigDict, Field


class TaskData(BaseModel):
    """The server has the prompt, and all that decides the reward."""

    model_config = ConfigDict(extra="allow")

    prompt_id: str = Field(json_schema_extra={{"consumed_by": ["verify"]}})
'''


def export(
    run: RunDirectory, folder: Path, in_flight: int | None = None, *, unsealed: bool = False
) -> list[str]:
    """Write the folder; what there is to say of it. Raises `EquipoiseError`."""
    refuse_used_folder(folder)
    task = task_of_run(run, unsealed=unsealed)
    environment, records, reference = task.environment, task.records, task.reference
    reward_range = _reward_range(environment)
    settings = _settings(task.loaded, reference is not None, in_flight)
    checked = ServiceSettings.model_validate(settings)
    refuse_small_limit(checked, seats_by_group(records, environment.scope, checked))

    name = f"equipoise_{environment.name}"
    server, home = folder / "resources_servers" / name, folder / "environments" / name
    write_prompts(server / "data" / "prompts.jsonl", records, task.about)
    if reference is not None:
        write_rollouts(server / "data" / "reference.jsonl", reference)
    datasets = _write_datasets(home, records, environment)
    _write_yaml(home / "config.yaml", _config(name, settings, datasets))
    cases = _fixture(server, task.loaded, environment, records, reward_range)
    _write_server(server, checked.environment, with_fixture=bool(cases))
    _write_yaml(home / "manifest.yaml", _manifest(name, reward_range, datasets, bool(cases)))
    return [
        f"{folder}: {name}, {len(records):,} prompts to train on and to validate with",
        *([] if reference is None else [f"the reference has {len(reference):,} rollouts"]),
        f"{len(cases)} cases to check the server with",
        *task.notes,
    ]


def _fixture(
    server: Path,
    loaded: LoadedConfig,
    environment: Environment,
    records: Sequence[PromptRecord],
    reward_range: tuple[float, float],
) -> list[dict[str, Any]]:
    """Cases to check the server with; none where another model would have to be asked."""
    settings = loaded.env_settings
    if settings.model_calls(records[:1], 1):
        return []
    cases = fixture_cases(settings_of(server), environment, records[0], reward_range)
    if cases:
        write_jsonl(server / "data" / "verifier_cases.jsonl", cases)
    return cases


def _write_server(folder: Path, environment: str, *, with_fixture: bool) -> None:
    words = {"name": folder.name, "environment": environment, "root": str(_ROOT)}
    words |= {"imports": _FIXTURE_IMPORTS, "fixture": _FIXTURE} if with_fixture else _NO_FIXTURE
    write_text(folder / "app.py", _APP.format(**words))
    write_text(folder / "task_data.py", _TASK_DATA.format(**words))
    checkout, released = own_requirement()
    ours = f"-e {checkout}" if checkout else released
    write_text(folder / "requirements.txt", f"{NEMO_GYM}\n{ours}\n")


def _reward_range(environment: Environment) -> tuple[float, float]:
    if reward_range := environment.reward_range():
        return reward_range
    raise UsageError(
        f"{environment.name} does not say between what its rewards are, which a manifest must",
        "Give the environment a method reward_range, see environments/contract.py.",
    )


def _settings(loaded: LoadedConfig, compares: bool, in_flight: int | None) -> dict[str, Any]:
    """The server's section; its own paths are below its folder, in which Gym starts it."""
    settings = loaded.config.equipoise
    return {
        "environment": settings.environment,
        "settings": loaded.env_settings.model_dump(mode="json"),
        "prompts": "data/prompts.jsonl",
        "reference": "data/reference.jsonl" if compares else None,
        "generations": loaded.config.grpo.num_generations_per_prompt,
        "deadline_seconds": ServiceSettings.model_fields["deadline_seconds"].default,
        "in_flight": in_flight,
        "answers": "answers.sqlite3",
    }


def _write_datasets(
    home: Path, records: Sequence[PromptRecord], environment: Environment
) -> list[dict[str, Any]]:
    """One file of rows for each split that there is, and one to try the server with."""
    splits = {
        name: [record for record in records if record.split == name]
        for name in (TRAIN_SPLIT, VALIDATION_SPLIT)
    }
    groups = [group_of(record, environment.scope) for record in splits[TRAIN_SPLIT]]
    tried = set(groups[:_EXAMPLES])
    both = zip(splits[TRAIN_SPLIT], groups, strict=True)
    splits["example"] = [record for record, group in both if group in tried]
    present = {name: chosen for name, chosen in splits.items() if chosen}
    for name, chosen in present.items():
        write_jsonl(home / "data" / f"{name}.jsonl", map(row, chosen))
    path = f"environments/{home.name}/data"
    return [{"name": n, "type": n, "jsonl_fpath": f"{path}/{n}.jsonl"} for n in present]


def row(record: PromptRecord) -> dict[str, Any]:
    """A prompt as NeMo Gym takes it."""
    messages = [dict(message) for message in record.messages]
    return {"responses_create_params": {"input": messages}, "prompt_id": record.id}


def _config(
    name: str, settings: Mapping[str, Any], datasets: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """The server, and Gym's own agent, which asks the model once."""
    agent = f"{name}_simple_agent"
    serving = {
        "entrypoint": "app.py",
        "domain": "other",
        "verified": False,
        "description": f"Rewards of Equipoise's {settings['environment']}",
        "value": "Rewards that were attacked before they were believed",
        "equipoise": dict(settings),
    }
    asking = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": name},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "datasets": list(_licensed(datasets)),
    }
    legacy = {
        "entrypoint": "app.py",
        "agent_server": {"type": "responses_api_agents", "name": agent},
    }
    return {
        name: {"resources_servers": {name: serving}},
        agent: {"responses_api_agents": {"simple_agent": asking}},
        f"{name}_environment_server": {"environment_servers": {"legacy_agent": legacy}},
    }


def _licensed(datasets: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Add the licence that Gym asks for of training data; that of prompts is not known here."""
    for dataset in datasets:
        licence = {} if dataset["type"] == "example" else {"license": "TBD"}
        yield {**dataset, **licence}


def _manifest(
    name: str,
    reward_range: tuple[float, float],
    datasets: Iterable[Mapping[str, Any]],
    deterministic: bool,
) -> dict[str, Any]:
    """Describe the environment to Gym's catalogue; one that asks a model may answer otherwise."""
    return {
        "name": name,
        "version": version("equipoise"),
        "experimental": True,
        "kind": "environment",
        "integration_profile": "custom-gym-verifier",
        "domain": "other",
        "description": "Rewards of Equipoise; whole counterfactual sets are scored together.",
        "modality": "text",
        "licensing": "unknown",
        "authors": ["Equipoise"],
        "reward": {"range": list(reward_range), "higher_is_better": True},
        "determinism": "seeded" if deterministic else "unknown",
        "resources_server": name,
        "agent_server": "simple_agent",
        "datasets": [{**dataset, "num_repeats": 1} for dataset in datasets],
        "model_server": "policy_model",
        "lifecycle": "active",
    }


def _write_yaml(path: Path, tree: Mapping[str, Any]) -> None:
    write_text(path, yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))
