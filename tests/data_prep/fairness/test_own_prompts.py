"""Prompts of a user's own cases, and the configuration that names them with one key."""

from pathlib import Path

import pytest
import yaml

from data_prep.fairness import PromptSettings, build_prompts, prompt_problems
from equipoise.config import Options, load_config
from tests.refusals import refusal

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "nemo_configs" / "cases" / "chest_pain_gender.yaml"


def own(tmp_path: Path, **changed: object) -> Path:
    path = tmp_path / "mine.yaml"
    tree = yaml.safe_load(EXAMPLE.read_text()) | changed
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def test_a_sample_has_whole_sets_and_the_environment_can_score_them() -> None:
    records = build_prompts(PromptSettings(cases_file=EXAMPLE, num_samples=8))
    assert len(records) == 8 and len({r.set_id for r in records}) == 4
    assert prompt_problems(records) == []
    assert prompt_problems([records[0], records[0]]) == [
        f"1 prompts have the gender of another one of their set: {records[0].id}"
    ]
    assert not PromptSettings(cases_file=EXAMPLE).invented


def test_cases_are_trained_on_that_the_file_names(tmp_path: Path) -> None:
    path = own(tmp_path, train=["muscle"], validate=["rest"])
    records = build_prompts(PromptSettings(cases_file=path))
    assert {r.metadata["case"]: r.split for r in records} == {
        "muscle": "train",
        "exertion": "test",
        "rest": "validation",
    }


def load(path: Path, *words: str, scale: str = "small"):
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
def test_keys_that_the_file_answers_are_refused_by_name(word: str, told: str) -> None:
    with refusal("config.problems", "1 problem") as refused:
        load(EXAMPLE, word)
    key = word.partition("=")[0]
    assert f"command line: {key}: is not read beside the other keys" in str(refused.value)
    assert told in str(refused.value)
    files = (ROOT / "nemo_configs" / "small.yaml",)
    assert load_config("fairness", Options(files, (), (word,)))


def test_what_the_scales_set_of_them_is_no_mistake_and_is_not_kept(tmp_path: Path) -> None:
    loaded = load(EXAMPLE, "policy.model_name=x", scale="local")
    assert (
        not {"cases", "leave_out", "implied_share", "fractions"}
        & loaded.resolved["equipoise"]["data"].keys()
    )
    kept = tmp_path / "config.yaml"
    kept.write_text(loaded.to_yaml())
    assert load_config("fairness", Options((kept,))).prompt_settings.cases_file == EXAMPLE
