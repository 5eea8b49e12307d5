"""The fairness data module: settings, prompts, what the local model is shown, the command."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from data_prep import fairness
from data_prep.fairness import LocalModelSettings, PromptSettings, build_prompts, prompt_problems
from data_prep.fairness.local_model import imitated_replies
from data_prep.fairness.vignettes import INJURIES
from equipoise.config import Options, load_config
from tests.refusals import refusal

SMALL = LocalModelSettings(steps=40, batch_size=32)


def of_split(records, split):
    return [record for record in records if record.split == split]


def combinations(records):
    return {record.metadata["combination"] for record in records}


@pytest.mark.parametrize("num_samples", [None, 640], ids=["all vignettes", "few vignettes"])
def test_no_combination_that_is_tested_is_trained_on(num_samples):
    records = build_prompts(PromptSettings(num_samples=num_samples, seed=3))
    split = {name: of_split(records, name) for name in ("train", "validation", "test")}
    parts = [combinations(part) for part in split.values()]
    assert len(set.union(*parts)) == sum(map(len, parts))
    assert {r.metadata["hold_out"] for r in split["test"]} == {"new combination"}
    assert not [r for r in split["train"] if "hold_out" in r.metadata]
    severities = {
        name: Counter(r.metadata["severity"] for r in part) for name, part in split.items()
    }
    for severity in ("mild", "moderate", "severe"):
        share = severities["test"][severity] / severities["train"][severity]
        assert share == pytest.approx(2 / 7, rel=0.25)


def test_an_injury_that_is_left_out_is_tested_and_never_trained_on():
    settings = PromptSettings(num_samples=640, leave_out=["falling_load"])
    records = build_prompts(settings)
    left_out = [r for r in records if r.metadata["case"] == "falling_load" and r.split != "control"]
    assert len(left_out) == 640 // len(INJURIES)
    assert {(r.split, r.metadata["hold_out"]) for r in left_out} == {("test", "new injury")}
    assert {r.metadata["hold_out"] for r in of_split(records, "test")} == {
        "new combination",
        "new injury",
    }


def test_race_is_implied_in_the_share_that_is_asked_for():
    records = build_prompts(PromptSettings(num_samples=1600, implied_share=0.25))
    told = Counter(r.metadata["cue"] for r in records if r.split != "control")
    assert told["implied"] / 1600 == pytest.approx(0.25, abs=0.06)
    who = {
        split: {
            r.messages[-1]["content"].split(", ")[1]
            for r in of_split(records, split)
            if r.metadata["cue"] == "implied"
        }
        for split in ("train", "validation", "test")
    }
    assert len(who["train"]) > 20
    assert not who["train"] & (who["validation"] | who["test"])
    assert not [
        r for r in build_prompts(PromptSettings(num_samples=96)) if r.metadata.get("implied_by")
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_samples": 50}, "take 48 or 52"),
        ({"num_samples": 2308, "cases": ["whiplash"]}, "2,304"),
        ({"num_samples": 8}, "there are 2"),
        ({"cases": ["whiplush"]}, "'whiplush'"),
        ({"leave_out": ["whiplush"]}, "'whiplush'"),
        ({"cases": ["whiplash/5-numb"]}, "'whiplash/5-numb'"),
        ({"cases": ["whiplash"], "leave_out": ["whiplash"]}, "whiplash"),
        ({"cases": ["whiplash", "whiplash/5-numb-root-worse"]}, "whiplash"),
        ({"leave_out": [injury.name for injury in INJURIES]}, "nothing to train on"),
        ({"fractions": {"train": 0.9}}, "1.2"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        PromptSettings.model_validate(settings)


@pytest.mark.parametrize("num_samples", [None, 64], ids=["all vignettes", "few vignettes"])
def test_the_local_model_is_shown_no_combination_that_is_held_out(num_samples):
    records = build_prompts(
        PromptSettings(
            num_samples=num_samples, cases=["whiplash", "lifting"], leave_out=["forklift"]
        )
    )
    held_out = combinations(r for r in records if r.split in ("validation", "test"))
    shown = [record for record, _ in imitated_replies(records, SMALL)]
    assert len(shown) == 40 * 32
    assert not held_out & combinations(shown)
    # However few the vignettes of the run are, the model sees hundreds of cases, and as a
    # pre-trained model has, it has seen the injury that is left out.
    assert len(combinations(shown)) > 200
    assert {r.metadata["case"] for r in shown} == {"whiplash", "lifting", "forklift"}


def test_of_a_single_case_the_local_model_is_shown_no_patient_that_is_held_out():
    records = build_prompts(PromptSettings(cases=["whiplash/5-numb-root-worse"]))
    held_out = {r.messages[-1]["content"] for r in records if r.split in ("validation", "test")}
    shown = [
        record for record, _ in imitated_replies(records, SMALL.model_copy(update={"steps": 300}))
    ]
    assert not held_out & {record.messages[-1]["content"] for record in shown}
    assert "whiplash/5-numb-root-worse" in combinations(shown)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("race", "Martian", "prompts have no race"),
        ("race", "Black", "prompts have the race of another"),
        ("case", None, "prompts name no clinical case"),
    ],
)
def test_prompts_that_cannot_be_scored_are_told_of_at_the_start(key, value, fault):
    records = build_prompts(PromptSettings(num_samples=12))
    assert fairness.prompt_problems(records) == []
    white = next(n for n, r in enumerate(records) if r.metadata.get("race") == "White")
    changed = records[white].metadata | {key: value}
    records[white] = replace(records[white], metadata=changed)
    [problem] = fairness.prompt_problems(records)
    assert problem.startswith(f"1 {fault}")


def test_the_local_model_reads_no_other_cases():
    [record, *_] = build_prompts(PromptSettings(num_samples=12))
    other = replace(record, metadata=record.metadata | {"case": "tennis elbow"})
    with refusal("local-model.foreign-injury", "'tennis elbow'"):
        imitated_replies([other], SMALL)


ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "nemo_configs" / "cases" / "chest_pain_gender.yaml"


def own(tmp_path, **changed):
    path = tmp_path / "mine.yaml"
    tree = yaml.safe_load(EXAMPLE.read_text()) | changed
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def test_a_sample_has_whole_sets_and_the_environment_can_score_them():
    records = build_prompts(PromptSettings(cases_file=EXAMPLE, num_samples=8))
    assert len(records) == 8 and len({r.set_id for r in records}) == 4
    assert prompt_problems(records) == []
    assert prompt_problems([records[0], records[0]]) == [
        f"1 prompts have the gender of another one of their set: {records[0].id}"
    ]
    assert not PromptSettings(cases_file=EXAMPLE).invented


def test_cases_are_trained_on_that_the_file_names(tmp_path):
    path = own(tmp_path, train=["muscle"], validate=["rest"])
    records = build_prompts(PromptSettings(cases_file=path))
    assert {r.metadata["case"]: r.split for r in records} == {
        "muscle": "train",
        "exertion": "test",
        "rest": "validation",
    }


def load(path, *words, scale="small"):
    files = (ROOT / "nemo_configs" / f"{scale}.yaml",)
    keys = (f"env.fairness.cases_file={path}", *words)
    return load_config("fairness", Options(files, (), keys))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("equipoise.data.cases=[whiplash]", "take out of the file"),
        ("equipoise.data.leave_out=[]", "tested alone"),
        ("equipoise.data.implied_share=0.5", "words of that value"),
        ("equipoise.data.fractions={train: 0.5, test: 0.4}", "its train and validate"),
    ],
)
def test_keys_that_the_file_answers_are_refused_by_name(word, told):
    with refusal("config.problems", "1 problem") as refused:
        load(EXAMPLE, word)
    key = word.partition("=")[0]
    assert f"command line: {key}: is not read beside the other keys" in str(refused.value)
    assert told in str(refused.value)
    files = (ROOT / "nemo_configs" / "small.yaml",)
    assert load_config("fairness", Options(files, (), (word,)))


def test_what_the_scales_set_of_them_is_no_mistake_and_is_not_kept(tmp_path):
    loaded = load(EXAMPLE, "policy.model_name=x", scale="local")
    assert (
        not {"cases", "leave_out", "implied_share", "fractions"}
        & loaded.resolved["equipoise"]["data"].keys()
    )
    kept = tmp_path / "config.yaml"
    kept.write_text(loaded.to_yaml())
    assert load_config("fairness", Options((kept,))).prompt_settings.cases_file == EXAMPLE
