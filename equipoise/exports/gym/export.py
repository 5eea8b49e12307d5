"""The folder that NeMo Gym starts, made from a run or an evaluation.

    FOLDER/resources_servers/equipoise_TASK/
        app.py  requirements.txt  task_data.py
        data/prompts.jsonl  data/reference.jsonl    what the server reads, beside itself
    FOLDER/environments/equipoise_TASK/
        manifest.yaml  config.yaml                  what `gym env validate` and `start` read
        data/train.jsonl  validation.jsonl  example.jsonl

A row names its prompt, and nothing that decides the reward: that stays with the server.
"""

import json
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

import yaml

from data_prep.files import write_jsonl, write_text
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.errors import UsageError
from equipoise.exports.task import ROOT, as_yaml, groups_of, own_requirement, task_of_run
from equipoise.run.directory import RunDirectory

#: Prompts, and the rest of their last set, to try a server with.
_EXAMPLES = 5
_APP = Template('''"""The resources server $name."""

import sys

sys.path.insert(0, "$root")  # NeMo Gym has a package `environments` too

from equipoise.exports.gym.server import EquipoiseServer

if __name__ == "__main__":
    EquipoiseServer.run_webserver()
''')
_TASK_DATA = '''from pydantic import BaseModel, ConfigDict, Field


class TaskData(BaseModel):
    """The server has the prompt, and all that decides the reward."""

    model_config = ConfigDict(extra="allow")

    prompt_id: str = Field(json_schema_extra={"consumed_by": ["verify"]})
'''
#: Our server, and Gym's own agent, which asks the model once.
_CONFIG = Template("""
$name: {resources_servers: {$name: {
  entrypoint: app.py, domain: other, verified: false, description: Rewards of Equipoise,
  value: Rewards that were attacked before they were believed, equipoise: $settings}}}
${name}_simple_agent: {responses_api_agents: {simple_agent: {
  entrypoint: app.py, resources_server: {type: resources_servers, name: $name},
  model_server: {type: responses_api_models, name: policy_model}, datasets: $datasets}}}
${name}_environment_server: {environment_servers: {legacy_agent: {
  entrypoint: app.py, agent_server: {type: responses_api_agents, name: ${name}_simple_agent}}}}
""")
_MANIFEST = Template("""
{name: $name, version: $version, experimental: true, kind: environment, lifecycle: active,
 integration_profile: custom-gym-verifier, domain: other, description: Rewards of Equipoise,
 modality: text, licensing: unknown, authors: [Equipoise], determinism: unknown,
 reward: {range: $range, higher_is_better: true}, resources_server: $name,
 agent_server: simple_agent, model_server: policy_model, datasets: $datasets}
""")


def export(run: RunDirectory, folder: Path) -> list[str]:
    """Write the folder; what there is to say of it. Raises `EquipoiseError`."""
    task = task_of_run(run, folder)
    name, scope = f"equipoise_{task.environment.name}", task.environment.scope
    if (reward_range := task.environment.reward_range()) is None:
        raise UsageError(
            "gym.no-reward-range",
            f"{name} does not say between what its rewards are, which a manifest must",
            "Give the environment a method reward_range, see environments/contract.py.",
        )
    server, home = folder / "resources_servers" / name, folder / "environments" / name
    task.write_data(server)
    train, validation = (
        [record for record in task.records if record.split == split]
        for split in (TRAIN_SPLIT, VALIDATION_SPLIT)
    )
    first = {record.id for record in train[:_EXAMPLES]}
    tried = [g for g in groups_of(train, scope).values() if first & {r.id for r in g}]
    splits = {"train": train, "validation": validation, "example": [r for g in tried for r in g]}
    datasets = []
    for split, records in splits.items():
        if records:
            write_jsonl(home / "data" / f"{split}.jsonl", map(row, records))
            path = f"environments/{name}/data/{split}.jsonl"
            datasets.append({"name": split, "type": split, "jsonl_fpath": path})
    words = {
        "name": name,
        "root": str(ROOT),
        "version": version("equipoise"),
        "range": list(reward_range),
        "settings": json.dumps(task.settings),
    }
    # Gym asks for a licence of training data; that of these prompts is not known here.
    licensed = [d if d["type"] == "example" else d | {"license": "TBD"} for d in datasets]
    repeated = [d | {"num_repeats": 1} for d in datasets]
    for file, template, held in (
        ("config.yaml", _CONFIG, licensed),
        ("manifest.yaml", _MANIFEST, repeated),
    ):
        text = template.substitute(words, datasets=json.dumps(held))
        write_text(home / file, as_yaml(yaml.safe_load(text)))
    write_text(server / "app.py", _APP.substitute(words))
    write_text(server / "task_data.py", _TASK_DATA)
    requirements = f"nemo-gym==0.7.0\n{own_requirement(f'-e {ROOT}')}\n"
    write_text(server / "requirements.txt", requirements)
    counts = f"{len(task.records):,} prompts to train on and to validate with"
    return [f"{folder}: {name}, {counts}", *task.notes]


def row(record: PromptRecord) -> dict[str, Any]:
    """A prompt as NeMo Gym takes it."""
    messages = [dict(message) for message in record.messages]
    return {"responses_create_params": {"input": messages}, "prompt_id": record.id}
