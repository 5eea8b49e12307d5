"""The folder for NeMo Gym: what is in it, what is not, what is refused."""

import json
from pathlib import Path

import pytest
import yaml

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.records import read_prompts
from environments.base import Message, PromptRecord
from equipoise.exports.command import ExportOptions, gym
from equipoise.exports.gym.export import export
from equipoise.exports.task import RewardSettings
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import read_options
from tests.contract.gym.served import made_run, rollout
from tests.refusals import refusal

RECORDS = build_prompts(PromptSettings(num_samples=96))
TRAINED = [record for record in RECORDS if record.split == "train"]
NAME = "equipoise_fairness"


def rows(path: Path) -> list:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def fairness(tmp_path):
    """A run whose reference knows all sets but one."""
    known = [r for r in RECORDS if r.set_id != TRAINED[0].set_id]
    shuffled = known[::2] + known[1::2]
    records = [*shuffled, *(r for r in RECORDS if r.set_id == TRAINED[0].set_id)]
    return made_run(tmp_path / "run", "fairness", records, [rollout(r, "{}") for r in known])


def test_rows_name_their_prompt_and_tell_nothing_else(fairness, tmp_path):
    export(fairness, tmp_path / "gym")
    data = tmp_path / "gym" / "environments" / NAME / "data"
    trained = rows(data / "train.jsonl")
    assert {frozenset(row) for row in trained} == {
        frozenset({"responses_create_params", "prompt_id"})
    }
    of = {record.id: record for record in RECORDS}
    for row in trained:
        asked = row["responses_create_params"]["input"]
        assert asked == list(of[row["prompt_id"]].messages)


def test_sets_are_whole_adjacent_and_of_the_reference(fairness, tmp_path):
    export(fairness, tmp_path / "gym")
    server = tmp_path / "gym" / "resources_servers" / NAME
    records = read_prompts(server / "data" / "prompts.jsonl")
    assert {record.split for record in records} == {"train", "validation"}
    sets = [record.set_id for record in records]
    assert TRAINED[0].set_id not in sets
    assert all(len(set(sets[n : n + 4])) == 1 for n in range(0, len(sets), 4))
    tried = rows(tmp_path / "gym" / "environments" / NAME / "data" / "example.jsonl")
    assert 5 <= len(tried) <= 8
    assert len(tried) % 4 == 0


def test_the_server_s_section_is_valid_and_moves_with_the_folder(fairness, tmp_path):
    export(fairness, tmp_path / "gym")
    config = yaml.safe_load(
        (tmp_path / "gym" / "environments" / NAME / "config.yaml").read_text("utf-8")
    )
    section = config[NAME]["resources_servers"][NAME]["equipoise"]
    settings = RewardSettings.model_validate(section)
    assert settings.generations == 16
    assert not Path(section["prompts"]).is_absolute()
    manifest = yaml.safe_load(
        (tmp_path / "gym" / "environments" / NAME / "manifest.yaml").read_text("utf-8")
    )
    assert manifest["reward"]["range"] == [-5.0, 6.0]


def test_a_run_whose_reference_knows_no_training_prompt_is_refused(tmp_path):
    tested = [rollout(r, "{}") for r in RECORDS if r.split == "test"]
    for name, reference in (("bare", []), ("audit", tested)):
        made = made_run(tmp_path / name, "fairness", RECORDS, reference)
        with refusal("export.no-prompt", str(made.root)):
            export(made, tmp_path / "gym")
    assert not (tmp_path / "gym").exists()


def test_a_folder_that_is_not_empty_is_refused(fairness, tmp_path):
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "mine").touch()
    with refusal("export.used-folder"):
        export(fairness, tmp_path / "gym")


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    asks = (Message(role="user", content="Q"),)
    metadata = {"gold": "yes", "context": "C", "question": "Q"}
    record = PromptRecord("p", "pubmedqa", asks, "p", "train", metadata)
    made = made_run(tmp_path / "run", "pubmedqa", [record])
    gym(
        read_options(ExportOptions, [str(made.root), "--output-dir", str(tmp_path / "gym")]),
        Reporter(),
    )
    assert "equipoise_pubmedqa, 1 prompts to train on" in capsys.readouterr().out
