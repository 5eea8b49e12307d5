"""A task prepares its data before a run, and one message tells of a failure or a wrong size."""

from dataclasses import replace
from typing import Any

import pytest
from huggingface_hub import constants

from data_prep.fairness import FairnessData
from environments.chat import BudgetSpentError
from environments.contract import EncoderSettings, Environment
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags
from equipoise.files.errors import EquipoiseError
from equipoise.files.records import write_prompts
from equipoise.run.task import check_steps, make_prompts, prepare_task, provide_models
from tests.refusals import refusal

STEP = "grpo.num_prompts_per_step"


def checked(task, *words):
    loaded = load_config(task, parse_flags("x", words))
    check_steps(loaded, make_prompts(loaded))


def test_a_split_without_a_prompt_to_evaluate_on_is_refused():
    with refusal("prompts.no-evaluation-split", "the split tset", "test", "train"):
        checked("fairness", "--num-samples=20", "equipoise.evaluation.split=tset")


def test_a_step_of_more_prompts_than_were_made_is_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    words = ("--num-samples=20", f"{STEP}=8")
    write_prompts(path, make_prompts(load_config("fairness", parse_flags("x", words))), {})
    for data in ("--num-samples=20", f"equipoise.data.data_path={path}"):
        with refusal("prompts.too-few", "32", "8"):
            checked("fairness", data, f"{STEP}=32")
        checked("fairness", data, f"{STEP}=8")


@pytest.fixture
def loaded():
    return load_config("fairness", Options((CONFIG_FOLDER / "local.yaml",)))


def with_module(loaded, **functions):
    methods = {name: staticmethod(function) for name, function in functions.items()}
    return replace(loaded, data_module=type("Own", (FairnessData,), methods)())


class Searching(Environment):
    """Wants an encoder, or none."""

    score = measure = None

    def __init__(self, encoder):
        self.encoder = encoder

    def wanted_encoder(self):
        return self.encoder


def raising(error):
    def function(*_):
        raise error

    return function


def test_a_task_gets_its_settings_and_knows_of_a_dry_run(loaded):
    seen: list[Any] = []
    chosen = with_module(loaded, prepare=lambda settings, tools: seen.append((settings, tools)))
    prepare_task(chosen, print, dry_run=True)
    ((settings, tools),) = seen
    assert settings == loaded.prompt_settings
    assert tools.dry_run


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_fetches_nothing_from_the_hub(dry_run, loaded, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    seen: list[bool] = []
    chosen = with_module(loaded, prepare=lambda *_: seen.append(constants.HF_HUB_OFFLINE))
    prepare_task(chosen, print, dry_run=dry_run)
    assert seen == [dry_run]
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("error", [ValueError("no index"), BudgetSpentError("x.spent", "spent")])
def test_trouble_is_told_in_one_message(loaded, error):
    with pytest.raises(EquipoiseError, match=str(error)):
        prepare_task(with_module(loaded, prepare=raising(error)), print)


def test_an_encoder_that_cannot_be_loaded_is_one_message(tmp_path):
    name = str(tmp_path / "none")
    settings = EncoderSettings(query_model=name, passage_model=name)
    with refusal("encoder.unloadable"):
        provide_models(Searching(settings), "")
