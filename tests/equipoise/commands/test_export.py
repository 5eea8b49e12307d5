"""Exports to NeMo Gym and verifiers: what they hold, what stays in the run, what is refused."""

import ast
import json
import tomllib
from pathlib import Path

import pytest
import yaml

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import FAILURE_KINDS, Message, PromptRecord
from equipoise.commands.export import task as command
from equipoise.commands.export.task import GYM_KINDS, Rewards, RewardSettings
from equipoise.config.words import read_options
from equipoise.files.console import Reporter
from tests.contract.gym.served import made_run, rollout
from tests.refusals import refusal

RECORDS = build_prompts(PromptSettings(num_samples=96))
METADATA = {"gold": "yes", "context": "C", "question": "Q"}
QUESTION = PromptRecord(
    "p", "pubmedqa", (Message(role="user", content="Q"),), "p", "train", METADATA
)


@pytest.fixture
def fairness(tmp_path):
    """A run whose prompts are not sorted by their sets."""
    shuffled = RECORDS[::2] + RECORDS[1::2]
    return made_run(tmp_path / "run", "fairness", shuffled, [rollout(r, "{}") for r in RECORDS])


def export(target, run, folder):
    options = [str(run.root), "--output-dir", str(folder)]
    getattr(command, target)(read_options(command.ExportOptions, options), Reporter())
    return folder


def gym_section(folder):
    (path,) = folder.glob("environments/*/config.yaml")
    tree = yaml.safe_load(path.read_text("utf-8"))
    return tree[path.parent.name]["resources_servers"][path.parent.name]["equipoise"]


def test_gym_s_rows_are_whole_sets_that_name_their_prompts_and_nothing_else(fairness, tmp_path):
    (path,) = export("gym", fairness, tmp_path / "gym").glob("environments/*/data/train.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    of = {record.id: record for record in RECORDS}
    for row in rows:
        asked = {"input": list(of[row["prompt_id"]].messages)}
        assert row == {"responses_create_params": asked, "prompt_id": row["prompt_id"]}
    sets = [of[row["prompt_id"]].set_id for row in rows]
    assert all(len(set(sets[n : n + 4])) == 1 for n in range(0, len(sets), 4))
    assert {row["prompt_id"] for row in rows} == {r.id for r in RECORDS if r.split == "train"}


def test_both_refer_to_the_run_and_copy_nothing_that_decides(fairness, tmp_path):
    gym = export("gym", fairness, tmp_path / "gym")
    verifiers = export("verifiers", fairness, tmp_path / "verifiers")
    (settings,) = verifiers.rglob("settings.yaml")
    for section in (gym_section(gym), yaml.safe_load(settings.read_text("utf-8"))):
        given = RewardSettings.model_validate(section)
        assert (given.run, given.generations) == (fairness.root.absolute(), 16)
        assert {record.split for record in given.records()} == {"train", "validation"}
    names = {path.name for folder in (gym, verifiers) for path in folder.rglob("*.jsonl")}
    assert names == {"train.jsonl", "validation.jsonl"}


def test_verifiers_has_an_agent_for_each_prompt_of_a_set_and_one_for_a_prompt(fairness, tmp_path):
    single = made_run(tmp_path / "single", "pubmedqa", [QUESTION])
    fields = {}
    for run in (fairness, single):
        folder = export("verifiers", run, tmp_path / f"of-{run.root.name}")
        (package,) = folder.rglob("__init__.py")
        for node in ast.parse(package.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == "Agents":
                parts = [part for part in node.body if isinstance(part, ast.AnnAssign)]
                fields[run.root.name] = [part.target.id for part in parts]
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert project["name"] == package.parent.name.replace("_", "-")
    variants = [f"variant_{n}" for n in range(1, 5)]
    assert fields == {"run": [*variants, "generations"], "single": ["agent", "generations"]}


def test_the_commands_say_what_they_wrote_and_what_prime_rl_needs(fairness, tmp_path, capsys):
    export("verifiers", fairness, tmp_path / "out")
    said = capsys.readouterr().out
    assert 'prime-rl: algo.type = "grpo", group_size = 1, env.centered = true' in said
    with refusal("export.used-folder"):
        export("verifiers", fairness, tmp_path / "out")
    export("gym", made_run(tmp_path / "q", "pubmedqa", [QUESTION]), tmp_path / "gym")
    assert "equipoise_pubmedqa, 1 prompts to train on" in capsys.readouterr().out


def test_a_run_whose_reference_lacks_a_set_that_is_trained_on_is_refused(tmp_path):
    known = [rollout(r, "{}") for r in RECORDS if r.split == "test"]
    run = made_run(tmp_path / "run", "fairness", RECORDS, known)
    with refusal("export.no-prompt", str(run.root)):
        export("gym", run, tmp_path / "gym")


def settings(tmp_path, **changes):
    words = {"environment": "m.C", "settings": {}, "run": tmp_path, "cache_dir": tmp_path}
    return RewardSettings.model_validate(words | {"generations": 3} | changes)


@pytest.mark.parametrize(
    ("environment", "keys", "code"),
    [
        ("fairness.FairnessEnvironment", {}, "rollouts.no-file"),
        ("rag.RagEnvironment", {"index": "no such index"}, "index.no-folder"),
    ],
)
def test_what_scores_need_and_is_not_there_is_said_at_the_start(environment, keys, code, tmp_path):
    with refusal(code):
        Rewards(settings(tmp_path, environment=f"environments.{environment}", settings=keys))


def test_every_kind_of_failure_has_the_name_in_nemo_gym_that_the_documentation_says():
    rows = Path("docs/judges.md").read_text("utf-8").splitlines()
    documented = {row.split("`")[1]: row.split("`")[-2] for row in rows if row.startswith("| `")}
    assert {kind: documented[kind] for kind in FAILURE_KINDS} == {
        kind: GYM_KINDS.get(kind, kind) for kind in FAILURE_KINDS
    }
