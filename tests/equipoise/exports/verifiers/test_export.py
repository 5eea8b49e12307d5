"""The package for verifiers: what is in it, what is refused. What it does: test_verifiers.py."""

import ast
import tomllib

import pytest
import yaml

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.records import read_prompts
from environments.base import Message, PromptRecord
from equipoise.exports.command import ExportOptions, verifiers
from equipoise.exports.verifiers.export import export
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import read_options
from tests.contract.gym.served import made_run, rollout
from tests.refusals import refusal

RECORDS = build_prompts(PromptSettings(num_samples=96))
TRAINED = [record for record in RECORDS if record.split == "train"]
METADATA = {"gold": "yes", "context": "C", "question": "Q"}
QUESTION = PromptRecord(
    "p", "pubmedqa", (Message(role="user", content="Q"),), "p", "train", METADATA
)


@pytest.fixture
def fairness(tmp_path):
    return made_run(tmp_path / "run", "fairness", RECORDS, [rollout(r, "{}") for r in RECORDS])


def classes(package):
    """Name of a class -> the names that are set in it."""
    tree = ast.parse((package / "__init__.py").read_text("utf-8"))
    return {
        node.name: [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def test_a_set_has_an_agent_for_each_prompt_and_a_prompt_has_one(fairness, tmp_path):
    export(fairness, tmp_path / "sets")
    agents = classes(tmp_path / "sets" / "equipoise_fairness")["Agents"]
    assert agents == [*(f"variant_{n}" for n in range(1, 5)), "generations"]
    export(made_run(tmp_path / "q", "pubmedqa", [QUESTION]), tmp_path / "single")
    agents = classes(tmp_path / "single" / "equipoise_pubmedqa")["Agents"]
    assert agents == ["agent", "generations"]


def test_settings_and_data_are_beside_the_package(fairness, tmp_path):
    export(fairness, tmp_path / "out")
    package = tmp_path / "out" / "equipoise_fairness"
    settings = yaml.safe_load((package / "settings.yaml").read_text("utf-8"))
    assert settings["scope"] == "set"
    assert settings["environment"] == "environments.fairness.FairnessEnvironment"
    records = read_prompts(package / settings["prompts"])
    assert {record.split for record in records} == {"train", "validation"}
    assert (package / settings["reference"]).exists()
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "equipoise-fairness"
    assert any(need.startswith("verifiers==") for need in project["dependencies"])
    assert any(need.startswith("equipoise") for need in project["dependencies"])


def test_the_command_says_what_it_wrote_and_what_prime_rl_needs(fairness, tmp_path, capsys):
    verifiers(
        read_options(ExportOptions, [str(fairness.root), "--output-dir", str(tmp_path / "out")]),
        Reporter(),
    )
    said = capsys.readouterr().out
    assert "equipoise_fairness" in said
    assert 'prime-rl: algo.type = "grpo", group_size = 1, env.centered = true' in said
    with refusal("export.used-folder"):
        verifiers(
            read_options(
                ExportOptions, [str(fairness.root), "--output-dir", str(tmp_path / "out")]
            ),
            Reporter(),
        )


def test_sets_of_several_sizes_are_refused(tmp_path):
    reference = [rollout(record, "{}") for record in RECORDS]
    run = made_run(tmp_path / "run", "fairness", RECORDS[1:], reference)
    with refusal("verifiers.uneven-sets", "[3, 4]"):
        export(run, tmp_path / "out")
