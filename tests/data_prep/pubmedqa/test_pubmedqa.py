"""The PubMedQA data module: settings, prompts, what the local model is shown, the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from data_prep.pubmedqa import (
    LocalModelSettings,
    PromptSettings,
    build_prompts,
    prompt_problems,
)
from data_prep.pubmedqa.local_model import imitated_replies
from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import parse_reply
from tests.refusals import refusal

SYNTHETIC = PromptSettings(source="synthetic", num_samples=200)
SMALL = LocalModelSettings(steps=40, batch_size=32)


def set_of(folder: Path, number: int = 60) -> str:
    """A file of so many questions, every third one asked of two abstracts."""
    rows = [
        {
            "question": f"Is {n - n % 3 // 2} so?",
            "context": f"It is {n}.",
            "ground_truth": LABELS[n % 2],
        }
        for n in range(number)
    ]
    path = folder / "set.json"
    path.write_text(json.dumps(rows))
    return str(path)


def test_a_set_of_ones_own_is_split_by_the_seed(tmp_path: Path) -> None:
    settings = PromptSettings(source="file", path=set_of(tmp_path), split="random")
    records = build_prompts(settings)
    assert len(records) == 60
    assert {r.split for r in records} == {"train", "validation", "test"}
    other = build_prompts(settings.model_copy(update={"seed": 1}))
    assert {r.id: r.split for r in records} != {r.id: r.split for r in other}


def test_another_set_has_no_published_split(tmp_path: Path) -> None:
    settings = PromptSettings(source="file", path=set_of(tmp_path))
    with pytest.raises(ValueError, match="take split: random for any other set"):
        build_prompts(settings)


def test_one_question_lies_in_one_split(tmp_path: Path) -> None:
    settings = PromptSettings(source="file", path=set_of(tmp_path), split="random")
    splits: dict[str, set[str]] = {}
    for record in build_prompts(settings):
        question = record.messages[1]["content"].splitlines()[-1]
        splits.setdefault(question, set()).add(record.split)
    assert len(splits) == 40
    assert all(len(found) == 1 for found in splits.values())


@pytest.mark.parametrize(
    "settings", [{"source": "file"}, {"path": "set.json"}, {"source": "synthetic"}], ids=str
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PromptSettings.model_validate(settings)


def test_the_warm_start_speaks_the_language_of_the_prompts_world() -> None:
    """Its seed may differ from that of the data, and still nothing held out is shown."""
    records = build_prompts(SYNTHETIC.model_copy(update={"seed": 4}))
    shown = imitated_replies(records, SMALL)
    assert len(shown) == 40 * 32
    assert {record.metadata["world"] for record, _ in shown} == {4}
    findings = {r.metadata["finding"] for r in records}
    assert not findings & {record.metadata["finding"] for record, _ in shown}
    assert all(parse_reply(reply).answer for _, reply in shown)


def test_the_local_model_is_not_made_for_other_prompts(tmp_path: Path) -> None:
    settings = PromptSettings(source="file", path=set_of(tmp_path), split="random")
    with refusal("local-model.pubmedqa-source"):
        imitated_replies(build_prompts(settings), SMALL)


def test_prompts_without_what_reasons_are_checked_with_are_refused() -> None:
    whole = build_prompts(SYNTHETIC)[:3]
    bare = [replace(r, metadata={"gold": "yes", "context": "a"}) for r in whole[:2]]
    [problem] = prompt_problems([*bare, *whole[2:]])
    assert problem.startswith("2 prompts have no context or no question in their metadata")
    assert prompt_problems(whole) == []
