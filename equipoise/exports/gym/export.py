"""The folder that NeMo Gym starts, made from a run, which it refers to.

    FOLDER/resources_servers/equipoise_TASK/    app.py  requirements.txt
    FOLDER/environments/equipoise_TASK/         manifest.yaml  config.yaml
                                                data/train.jsonl  data/validation.jsonl

A row names its prompt, and nothing that decides the reward: that stays with the server.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

import yaml

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, FailureKind
from equipoise.exports.task import REQUIREMENT, ROOT, groups_of, task_of_run, write_yaml
from equipoise.files.disk import write_jsonl, write_text
from equipoise.files.errors import UsageError
from equipoise.run.directory import RunDirectory

#: Failures that have another name in NeMo Gym, see docs/judges.md; what Gym has no name for
#: stands in a name space of its own, as Gym asks for.
GYM_KINDS: Mapping[FailureKind, str] = {
    **dict.fromkeys(("server_error", "rate_limit", "rejected"), "judge_failed"),
    "invalid_reply": "judge_unparseable",
    "policy": "verifier_error",
    "no_comparison": "equipoise:no_comparison",
    "budget": "equipoise:budget",
}
_APP = Template("""import sys

sys.path.insert(0, "$root")  # NeMo Gym has a package `environments` too
from equipoise.exports.gym.server import EquipoiseServer

if __name__ == "__main__":
    EquipoiseServer.run_webserver()
""")
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
{name: $name, version: $version, kind: environment, integration_profile: custom-gym-verifier,
 domain: other, description: Rewards of Equipoise, modality: text, authors: [Equipoise],
 reward: {range: $range, higher_is_better: true}, resources_server: $name,
 agent_server: simple_agent, model_server: policy_model, datasets: $datasets}
""")


def export(run: RunDirectory, folder: Path) -> list[str]:
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
    config = _CONFIG.substitute(words, datasets=json.dumps(licensed))
    manifest = _MANIFEST.substitute(words, datasets=json.dumps(datasets))
    write_yaml(home / "config.yaml", yaml.safe_load(config))
    write_yaml(home / "manifest.yaml", yaml.safe_load(manifest))
    write_text(server / "app.py", _APP.substitute(words))
    write_text(server / "requirements.txt", f"nemo-gym==0.7.0\n{REQUIREMENT}\n")
    return [f"{folder}: {name}, {sum(map(len, groups)):,} prompts to train on and to validate with"]
