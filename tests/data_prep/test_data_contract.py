"""A data module's hooks: those that are shipped fit, and what does not fit is said in words."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from data_prep.contract import DataModule, DataSettings, hook_problems
from data_prep.warm_start import Example, WarmStart
from environments.base import PromptRecord
from equipoise.config.flags import tasks


class Settings(DataSettings):
    seed: int = 0


LOCAL_MODEL = {
    "LocalModelSettings": WarmStart,
    "LOCAL_MODEL_NOTICE": "A tiny model.",
    "imitated_replies": lambda records, settings: [(record, "So.") for record in records],
}


def module(**hooks: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"PromptSettings": Settings, "build_prompts": lambda s: [], **hooks})


TASKS = tasks()
#: Settings of prompts that are made here.
MADE_HERE = {
    "fairness": {"num_samples": 24},
    "dharma": {"num_samples": 24},
    "pubmedqa": {"source": "synthetic", "num_samples": 60},
}


@pytest.mark.parametrize("task", TASKS)
def test_every_shipped_module_fits(task: str) -> None:
    shipped = import_module(f"data_prep.{task}")
    assert not list(hook_problems(shipped))
    module = DataModule(shipped)
    assert module.LocalModelSettings and module.LOCAL_MODEL_NOTICE
    assert module.PromptSettings().invented is not None
    assert module.offers(DataModule.prepare) == (task == "rag")
    assert module.offers(DataModule.check) == (task in ("rag", "pubmedqa"))
    assert module.offers(DataModule.prompt_problems) == (task != "dharma")


@pytest.mark.parametrize("task", MADE_HERE)
def test_replies_are_as_many_as_the_warm_start_takes_and_the_same_each_time(task: str) -> None:
    """That they hang on the seed stands in tests/equipoise/config/test_seed.py."""
    module = DataModule(import_module(f"data_prep.{task}"))
    records = module.build_prompts(module.PromptSettings(**MADE_HERE[task]))
    settings = module.LocalModelSettings(steps=3, batch_size=8)
    replies = module.imitated_replies(records, settings)
    assert len(replies) == 3 * 8
    assert module.imitated_replies(records, settings) == replies


def test_importing_the_modules_imports_neither_torch_nor_datasets() -> None:
    imports = ", ".join(f"data_prep.{task}" for task in TASKS)
    code = f"import sys, {imports}; sys.exit(bool({{'torch', 'datasets'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_module_of_two_names_has_a_default_for_all_else() -> None:
    own = DataModule(module(__name__="own"))
    settings = own.PromptSettings()
    assert own.prompt_problems([]) == own.check(settings, [], None) == []
    own.prepare(settings, None)
    assert own.LocalModelSettings is None and own.LOCAL_MODEL_NOTICE == ""
    assert settings.invented is None and settings.training_prompts is None
    assert not (
        settings.unread or settings.chosen or settings.no_training or settings.no_local_model
    )


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"PromptSettings": Settings()}, "PromptSettings"),
        ({"PromptSettings": BaseModel}, "PromptSettings"),
        ({"build_prompts": None}, "there is no build_prompts"),
        ({"LocalModelSettings": WarmStart}, "there is no LOCAL_MODEL_NOTICE, imitated_replies"),
        ({**LOCAL_MODEL, "LocalModelSettings": Settings}, "LocalModelSettings"),
        ({**LOCAL_MODEL, "imitated_replies": None}, "there is no imitated_replies"),
    ],
)
def test_a_wrong_hook_is_said(hooks: dict[str, Any], said: str) -> None:
    (problem,) = hook_problems(module(**hooks))
    assert said in problem


def test_a_local_model_imitates_the_replies(tmp_path: Path, warm_starts: list[Any]) -> None:
    own = module(__name__="own", **LOCAL_MODEL)
    assert not list(hook_problems(own))
    record, settings = PromptRecord("a", "own", (), "a", "train"), WarmStart()
    assert DataModule(own).build_local_model([record], settings, tmp_path) == tmp_path / "model"
    assert warm_starts == [([Example((), "So.")], settings, tmp_path)]


def test_a_module_may_make_its_local_model_itself(tmp_path: Path, warm_starts: list[Any]) -> None:
    hooks = {"LocalModelSettings": BaseModel, "build_local_model": lambda r, s, cache: cache / "x"}
    own = module(__name__="own", LOCAL_MODEL_NOTICE="Its own.", **hooks)
    assert not list(hook_problems(own))
    assert DataModule(own).build_local_model([], Settings(), tmp_path) == tmp_path / "x"
    assert not warm_starts
