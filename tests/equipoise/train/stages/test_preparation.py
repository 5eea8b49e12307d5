"""What a task makes beforehand and what its environment is handed; every trouble is one message."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from data_prep.contract import DataModule
from environments.chat import BudgetSpentError
from environments.contract import Environment
from environments.encoder import EncoderSettings
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.errors import EquipoiseError
from equipoise.models.task_environment import provide_models
from equipoise.train.stages.preparation import check_task, prepare_task


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


@pytest.mark.parametrize("error", [ValueError("no index"), BudgetSpentError("spent")])
def test_trouble_is_told_in_one_message(loaded: LoadedConfig, error: Exception) -> None:
    with pytest.raises(EquipoiseError, match=str(error)):
        prepare_task(with_module(loaded, prepare=raising(error)), print)


def test_rows_of_a_check_join_the_dry_run(loaded: LoadedConfig) -> None:
    chosen = with_module(loaded, check=lambda *_: [("index", "9", "passages")])
    (row,) = check_task(chosen, [])
    assert (row.label, row.value, row.note) == ("index", "9", "passages")
    with pytest.raises(EquipoiseError, match="cut off"):
        check_task(with_module(loaded, check=raising(ValueError("cut off"))), [])


def test_an_encoder_that_cannot_be_loaded_is_one_message(tmp_path: Path) -> None:
    name = str(tmp_path / "none")
    settings = EncoderSettings(query_model=name, passage_model=name)
    with pytest.raises(EquipoiseError, match="cannot be loaded"):
        provide_models(Searching(settings), "")


def test_no_encoder_is_loaded_where_none_is_wanted() -> None:
    provide_models(Searching(None), "")  # to set one is not implemented
