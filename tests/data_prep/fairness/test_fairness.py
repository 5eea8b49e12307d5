"""The fairness data module: settings, prompts, what the local model is shown, the command."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from data_prep import fairness
from data_prep.fairness import (
    LocalModelSettings,
    PromptSettings,
    build_local_model,
    build_prompts,
)
from data_prep.fairness.local_model import imitated_replies
from data_prep.faults import UnsuitablePromptsError
from data_prep.records import content_hash
from environments.disparity import RACES
from environments.disparity.decision import Decision, parse_decision

SMALL = LocalModelSettings(steps=40, batch_size=32)


def test_one_case_and_no_limit_are_exactly_2304_vignettes() -> None:
    records = build_prompts(PromptSettings(cases=["whiplash"]))
    counts = Counter(record.split for record in records)
    assert counts.pop("control") == 1
    assert sum(counts.values()) == 2304
    assert counts == {"train": 4 * 403, "validation": 4 * 58, "test": 4 * 115}


def test_all_cases_are_the_default() -> None:
    records = build_prompts(PromptSettings())
    counts = Counter(record.split for record in records)
    assert counts.pop("control") == 6
    assert sum(counts.values()) == 6 * 2304
    assert len({r.id for r in records}) == len(records)


def test_a_number_of_samples_counts_vignettes() -> None:
    records = build_prompts(PromptSettings(num_samples=48, seed=5))
    vignettes = [r for r in records if r.split != "control"]
    assert len(vignettes) == 48
    assert set(Counter(r.metadata["case"] for r in vignettes).values()) == {8}
    assert {r.split for r in vignettes} == {"train", "validation", "test"}


def test_the_settings_alone_decide() -> None:
    same = [content_hash(build_prompts(PromptSettings(num_samples=48))) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != content_hash(build_prompts(PromptSettings(num_samples=48, seed=1)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_samples": 50}, "take 48 or 52"),
        ({"num_samples": 2308, "cases": ["whiplash"]}, "at most 2,304"),
        ({"num_samples": 8}, "2 counterfactual sets are too few"),
        ({"cases": ["whiplush"]}, "no clinical case 'whiplush'"),
        ({"fractions": {"train": 0.9}}, "sum to 1.2"),
        ({"fractions": {"train": 0.8, "test": 0.1, "dev": 0.1}}, "fractions.dev"),
        ({"fractions": {"train": 0.8, "validation": 0.0, "test": 0.2}}, "greater than 0"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"num_sample": 48}, "num_sample\n"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PromptSettings.model_validate(settings)


def test_the_settings_are_valid_in_the_strict_mode() -> None:
    values = PromptSettings().model_dump() | {"num_samples": 48, "cases": ["whiplash"]}
    assert PromptSettings.model_validate(values, strict=True).num_samples == 48
    values = LocalModelSettings().model_dump()
    assert LocalModelSettings.model_validate(values, strict=True) == LocalModelSettings()


@pytest.mark.parametrize("num_samples", [None, 24], ids=["all vignettes", "few vignettes"])
def test_the_local_model_is_shown_no_evaluation_prompt(num_samples: int | None) -> None:
    records = build_prompts(PromptSettings(num_samples=num_samples, cases=["cauda_equina"]))
    held_out = {r.messages[-1]["content"] for r in records if r.split in ("validation", "test")}
    shown = imitated_replies(records, SMALL)
    assert len(held_out) == {None: 4 * (58 + 115), 24: 4 * 2}[num_samples]
    assert len(shown) == 40 * 32
    assert not held_out & {record.messages[-1]["content"] for record, _ in shown}
    # However few the vignettes of the run are, the model sees hundreds.
    assert len({record.set_id for record, _ in shown}) > 200


def test_the_local_model_is_shown_every_case_every_race_and_the_controls() -> None:
    shown = imitated_replies(build_prompts(PromptSettings(num_samples=24)), SMALL)
    assert len({record.metadata["case"] for record, _ in shown}) == 6
    races = Counter(record.metadata.get("race") for record, _ in shown)
    assert set(races) == {*RACES, None}
    assert 0.02 < races[None] / len(shown) < 0.09
    assert all(isinstance(parse_decision(text), Decision) for _, text in shown)


def test_the_answers_depend_on_the_seed() -> None:
    records = build_prompts(PromptSettings(num_samples=24))
    assert imitated_replies(records, SMALL) == imitated_replies(records, SMALL)
    other = SMALL.model_copy(update={"seed": 1})
    assert imitated_replies(records, other) != imitated_replies(records, SMALL)


def test_the_settings_reach_the_warm_start(
    tmp_path: Path, warm_starts: list[tuple[object, ...]]
) -> None:
    settings = LocalModelSettings(hidden_size=32, layers=1, steps=3, batch_size=2, seed=7)
    records = build_prompts(PromptSettings(num_samples=24))
    assert build_local_model(records, settings, tmp_path) == tmp_path / "model"
    [(examples, size, cache)] = warm_starts
    assert len(examples) == 6
    assert (size.hidden_size, size.layers, size.steps, size.batch_size) == (32, 1, 3, 2)
    assert (size.learning_rate, size.seed) == (settings.learning_rate, 7)
    assert cache == tmp_path


def test_importing_the_module_does_not_import_torch() -> None:
    code = "import sys, data_prep.fairness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("race", "Martian", "prompts have no race"),
        ("race", "Black", "prompts have the race of another"),
        ("case", None, "prompts name no clinical case"),
    ],
)
def test_prompts_that_cannot_be_scored_are_told_of_at_the_start(key, value, fault) -> None:
    records = build_prompts(PromptSettings(num_samples=12))
    assert fairness.prompt_problems(records) == []
    white = next(n for n, r in enumerate(records) if r.metadata.get("race") == "White")
    changed = records[white].metadata | {key: value}
    records[white] = replace(records[white], metadata=changed)
    [problem] = fairness.prompt_problems(records)
    assert problem.startswith(f"1 {fault}")


def test_the_local_model_reads_no_other_cases(tmp_path) -> None:
    [record, *_] = build_prompts(PromptSettings(num_samples=12))
    other = replace(record, metadata=record.metadata | {"case": "tennis elbow"})
    with pytest.raises(UnsuitablePromptsError, match="not 'tennis elbow'"):
        build_local_model([other], SMALL, tmp_path)
