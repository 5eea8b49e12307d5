"""From a request to a rollout: settings, prompts, reference, what is refused before it starts."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.records import write_prompts
from environments.base import FAILURE_KINDS, Message, PromptRecord
from equipoise.exports.gym.cohorts import GYM_KINDS, KeptAnswers, NoSuchSeatError
from equipoise.exports.gym.service import (
    RolloutRequest,
    ServiceSettings,
    open_service,
    seats_by_group,
)
from tests.refusals import refusal

FAIRNESS = "environments.fairness.FairnessEnvironment"
PUBMEDQA = "environments.pubmedqa.PubMedQAEnvironment"


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_prompts(path, build_prompts(PromptSettings(num_samples=48, cases=["whiplash"])), {})
    return path


def settings(prompts, **changes):
    return ServiceSettings(environment=FAIRNESS, prompts=prompts, generations=8, **changes)


def record(split, set_id="s", name="p"):
    messages = (Message(role="user", content="Q"),)
    return PromptRecord(name, "toy", messages, set_id, split, {})


def test_a_limit_below_a_cohort_is_refused(prompts):
    with refusal("gym.small-limit", "31", "32"):
        open_service(settings(prompts, in_flight=31))


def test_a_limit_of_a_cohort_is_not(prompts):
    with refusal("rewards.no-reference"):
        open_service(settings(prompts, in_flight=32))


def test_a_reference_that_is_not_there_is_said(prompts, tmp_path):
    with refusal("rollouts.no-file", "reference.jsonl"):
        open_service(settings(prompts, reference=tmp_path / "reference.jsonl"))


def test_prompts_that_were_changed_are_refused(prompts, tmp_path):
    for path in prompts.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write("\n")
    with refusal("prompts.invalid-file"):
        open_service(settings(tmp_path / "prompts.jsonl"))


@pytest.mark.parametrize(
    "wrong", [{"generations": 0}, {"deadline_seconds": 0}, {"deadline_seconds": "inf"}, {"no": 1}]
)
def test_wrong_settings_are_refused(prompts, wrong):
    with pytest.raises(ValidationError):
        ServiceSettings.model_validate(
            {"environment": FAIRNESS, "prompts": prompts, "generations": 8} | wrong
        )


def test_seats_are_those_of_a_set_or_of_a_prompt():
    records = [record("train", name="a"), record("train", name="b"), record("control", "c", "c")]
    records.append(record("validation", "v", "v"))
    given = settings(Path(), validation_generations=1)
    of_sets = seats_by_group(records, "set", given)
    assert {name: len(seats) for name, seats in of_sets.items()} == {"s": 16, "v": 1}
    of_prompts = seats_by_group(records, "rollout", given)
    assert {name: len(seats) for name, seats in of_prompts.items()} == {"a": 8, "b": 8, "v": 1}


def test_an_unknown_prompt_is_refused(tmp_path):
    write_prompts(tmp_path / "prompts.jsonl", [record("train")], {})
    service = open_service(
        ServiceSettings(environment=PUBMEDQA, prompts=tmp_path / "prompts.jsonl", generations=1)
    )
    with pytest.raises(NoSuchSeatError, match="no prompt 'q'"):
        asyncio.run(service.verify(RolloutRequest("q", 0, 0, "", "r")))


def test_an_index_that_is_not_there_is_said_at_the_start(tmp_path):
    write_prompts(tmp_path / "prompts.jsonl", [record("train")], {})
    given = ServiceSettings(
        environment="environments.rag.RagEnvironment",
        settings={"index": str(tmp_path / "index")},
        prompts=tmp_path / "prompts.jsonl",
        generations=1,
    )
    with refusal("index.no-folder"):
        open_service(given)


def test_answers_that_cannot_be_kept_are_refused_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with refusal("gym.unusable-answers-file", "answers.sqlite3"):
        KeptAnswers(tmp_path / "file" / "answers.sqlite3")


def test_every_kind_of_failure_has_the_name_in_nemo_gym_that_the_documentation_says():
    rows = Path("docs/judge-client.md").read_text("utf-8").splitlines()
    documented = {row.split("`")[1]: row.split("`")[-2] for row in rows if row.startswith("| `")}
    assert {kind: documented[kind] for kind in FAILURE_KINDS} == GYM_KINDS
