"""What a task makes beforehand, in one message where it fails; how large steps are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from data_prep.contract import DataModule
from data_prep.records import write_prompts
from environments.chat import BudgetSpentError
from environments.contract import Environment
from environments.encoder import EncoderSettings
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.training_words import parse_flags
from equipoise.errors import EquipoiseError
from equipoise.models.task_environment import provide_models
from equipoise.run.prompts import check_task, fit_steps, make_prompts, prepare_task
from tests.refusals import refusal

STEP = "grpo.num_prompts_per_step"


def fitted(task: str, *words: str) -> tuple[LoadedConfig, list[str]]:
    """The configuration as a run takes it, and what is said of it once the prompts are made."""
    loaded, said = load_config(task, parse_flags("x", words)), []
    return fit_steps(loaded, make_prompts(loaded), said.append), said


@pytest.mark.parametrize(
    ("task", "words", "prompts", "was"),
    [
        ("fairness", ("--model-size=small", "--num-samples=20", "--device=cpu"), 8, 32),
        ("fairness", ("--num-samples=50",), 36, 64),
        ("pubmedqa", ("--num-samples=20",), 14, 32),
    ],
)
def test_a_step_takes_all_prompts_where_there_are_few(
    task: str, words: tuple[str, ...], prompts: int, was: int
) -> None:
    found, said = fitted(task, *words)
    grpo, policy = found.config.grpo, found.config.policy
    assert grpo.num_prompts_per_step == prompts
    assert policy.train_global_batch_size == prompts * grpo.num_generations_per_prompt
    assert policy.train_global_batch_size % policy.train_micro_batch_size == 0
    assert (
        said[0] == f"{STEP} {was} is more than the {prompts} prompts to train on: taking {prompts}"
    )
    assert [line for line in said if line.startswith(STEP)] == said[:1]


def test_so_it_does_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    records = make_prompts(load_config("fairness", parse_flags("x", ["--num-samples=20"])))
    write_prompts(path, records, {})
    found, _ = fitted("fairness", f"equipoise.data.data_path={path}")
    assert found.config.grpo.num_prompts_per_step == 8


def test_enough_prompts_change_nothing() -> None:
    found, said = fitted("fairness", "--num-samples=240")
    assert (found.config.grpo.num_prompts_per_step, said) == (64, [])


def test_a_split_without_a_prompt_to_evaluate_on_is_refused() -> None:
    with refusal("prompts.no-evaluation-split", "the split tset", "test", "train"):
        fitted("fairness", "--num-samples=20", "equipoise.evaluation.split=tset")


def test_a_chosen_step_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(json.dumps({"grpo": {"num_prompts_per_step": 32}}))
    for chosen in ("--batch-size=32", f"{STEP}=32", f"--config={own}"):
        with refusal("prompts.too-few", "32", "8"):
            fitted("fairness", "--num-samples=20", chosen)


@pytest.fixture
def loaded() -> LoadedConfig:
    return load_config("fairness", Options((CONFIG_FOLDER / "local.yaml",)))


def with_module(loaded: LoadedConfig, **functions: Any) -> LoadedConfig:
    needed = {"PromptSettings": type(loaded.prompt_settings), "build_prompts": None}
    module = SimpleNamespace(__name__="own", **needed, **functions)
    return replace(loaded, data_module=DataModule(module))


class Searching(Environment):
    """Wants an encoder, or none."""

    score = measure = None

    def __init__(self, encoder: EncoderSettings | None) -> None:
        self.encoder = encoder

    def wanted_encoder(self) -> EncoderSettings | None:
        return self.encoder


def raising(error: Exception) -> Any:
    def function(*_: object) -> None:
        raise error

    return function


def test_a_task_without_more_to_make_is_left_alone(loaded: LoadedConfig) -> None:
    prepare_task(loaded, print)
    assert check_task(loaded, []) == []


def test_a_task_gets_its_settings_and_knows_of_a_dry_run(loaded: LoadedConfig) -> None:
    seen: list[Any] = []
    chosen = with_module(loaded, prepare=lambda settings, tools: seen.append((settings, tools)))
    prepare_task(chosen, print, dry_run=True)
    ((settings, tools),) = seen
    assert settings == loaded.prompt_settings
    assert tools.dry_run


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_fetches_nothing_from_the_hub(
    dry_run: bool, loaded: LoadedConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    seen: list[bool] = []
    chosen = with_module(loaded, prepare=lambda *_: seen.append(constants.HF_HUB_OFFLINE))
    prepare_task(chosen, print, dry_run=dry_run)
    assert seen == [dry_run]
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("error", [ValueError("no index"), BudgetSpentError("x.spent", "spent")])
def test_trouble_is_told_in_one_message(loaded: LoadedConfig, error: Exception) -> None:
    with pytest.raises(EquipoiseError, match=str(error)):
        prepare_task(with_module(loaded, prepare=raising(error)), print)


def test_rows_of_a_check_join_the_dry_run(loaded: LoadedConfig) -> None:
    chosen = with_module(loaded, check=lambda *_: [("index", "9", "passages")])
    (row,) = check_task(chosen, [])
    assert (row.label, row.value, row.note) == ("index", "9", "passages")
    with refusal("prompts.unsuitable-task", "cut off"):
        check_task(with_module(loaded, check=raising(ValueError("cut off"))), [])


def test_an_encoder_that_cannot_be_loaded_is_one_message(tmp_path: Path) -> None:
    name = str(tmp_path / "none")
    settings = EncoderSettings(query_model=name, passage_model=name)
    with refusal("encoder.unloadable"):
        provide_models(Searching(settings), "")


def test_no_encoder_is_loaded_where_none_is_wanted() -> None:
    provide_models(Searching(None), "")  # to set one is not implemented
