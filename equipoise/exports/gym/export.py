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

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.files import write_jsonl, write_text
from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from environments.contract import Environment
from equipoise.config import LoadedConfig
from equipoise.errors import UsageError
from equipoise.exports.gym.service import (
    ServiceSettings,
    fixture_cases,
    refuse_small_limit,
    seats_by_group,
    settings_of,
)
from equipoise.exports.task import (
    ROOT,
    group_of,
    own_requirement,
    refuse_used_folder,
    render,
    task_of_run,
)
from equipoise.run.directory import RunDirectory

NEMO_GYM = "nemo-gym==0.7.0"
#: So many prompts, and the rest of their last set, to try a server with.
_EXAMPLES = 5


def export(
    run: RunDirectory, folder: Path, in_flight: int | None = None, *, unsealed: bool = False
) -> list[str]:
    """Write the folder; what there is to say of it. Raises `EquipoiseError`."""
    refuse_used_folder(folder)
    task = task_of_run(run, unsealed=unsealed)
    environment, records, reference = task.environment, task.records, task.reference
    reward_range = _reward_range(environment)
    settings = task.settings | {
        "generations": task.loaded.config.grpo.num_generations_per_prompt,
        "deadline_seconds": ServiceSettings.model_fields["deadline_seconds"].default,
        "in_flight": in_flight,
        "answers": "answers.sqlite3",
    }
    checked = ServiceSettings.model_validate(settings)
    refuse_small_limit(checked, seats_by_group(records, environment.scope, checked))

    name = f"equipoise_{environment.name}"
    server, home = folder / "resources_servers" / name, folder / "environments" / name
    task.write_data(server)
    datasets = _write_datasets(home, records, environment)
    licensed = [d if d["type"] == "example" else d | {"license": "TBD"} for d in datasets]
    render("gym_config.yaml", home / "config.yaml", name=name, settings=settings, datasets=licensed)
    cases = _fixture(server, task.loaded, environment, records, reward_range)
    words = {
        "name": name,
        "environment": checked.environment,
        "version": version("equipoise"),
        "root": repr(str(ROOT)),
        "fixture": bool(cases),
        "reward_range": list(reward_range),
        "datasets": [dataset | {"num_repeats": 1} for dataset in datasets],
    }
    render("gym_app.py", server / "app.py", **words)
    render("gym_task_data.py", server / "task_data.py", **words)
    write_text(server / "requirements.txt", f"{NEMO_GYM}\n{own_requirement(f'-e {ROOT}')}\n")
    render("gym_manifest.yaml", home / "manifest.yaml", **words)
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
    if loaded.env_settings.model_calls(records[:1], 1):
        return []
    cases = fixture_cases(settings_of(server), environment, records[0], reward_range)
    if cases:
        write_jsonl(server / "data" / "verifier_cases.jsonl", cases)
    return cases


def _reward_range(environment: Environment) -> tuple[float, float]:
    if reward_range := environment.reward_range():
        return reward_range
    raise UsageError(
        "gym.no-reward-range",
        f"{environment.name} does not say between what its rewards are, which a manifest must",
        "Give the environment a method reward_range, see environments/contract.py.",
    )


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
