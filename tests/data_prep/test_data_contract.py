"""The class of a task's data: those that are shipped fit; what does not fit is said in words."""

import subprocess
import sys

import pytest
from pydantic import BaseModel

from data_prep.contract import DataModule, WarmStart, unfit_data
from equipoise.commands.prepare import find_task
from equipoise.config.compose import tasks


class Own(DataModule):
    """The smallest class of a task's data."""

    def build_prompts(self, settings):
        return []


class WithModel(Own):
    """One whose local model imitates replies."""

    LocalModelSettings = WarmStart
    LOCAL_MODEL_NOTICE = "A tiny model."

    def imitated_replies(self, records, settings):
        return [(record, "So.") for record in records]


TASKS = tasks()
#: Settings of prompts that are made here.
MADE_HERE = {
    "fairness": {"num_samples": 24},
    "dharma": {"num_samples": 24},
    "pubmedqa": {"source": "synthetic", "num_samples": 60},
}


@pytest.mark.parametrize("task", TASKS)
def test_every_shipped_class_fits(task):
    module = find_task(task)
    assert module.LocalModelSettings and module.LOCAL_MODEL_NOTICE
    assert module.PromptSettings().invented is not None
    assert module.offers(DataModule.prepare) == (task == "rag")
    assert module.offers(DataModule.prompt_problems) == (task != "dharma")


@pytest.mark.parametrize("task", MADE_HERE)
def test_replies_are_as_many_as_the_warm_start_takes_and_the_same_each_time(task):
    """That they hang on the seed stands in tests/equipoise/config/test_shipped.py."""
    module = find_task(task)
    records = module.build_prompts(module.PromptSettings(**MADE_HERE[task]))
    settings = module.LocalModelSettings(steps=3, batch_size=8)
    replies = module.imitated_replies(records, settings)
    assert len(replies) == 3 * 8
    assert module.imitated_replies(records, settings) == replies


def test_importing_the_modules_imports_neither_torch_nor_datasets():
    imports = ", ".join(f"data_prep.{task}" for task in TASKS)
    code = f"import sys, {imports}; sys.exit(bool({{'torch', 'datasets'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_class_of_one_method_has_a_default_for_all_else():
    own = Own()
    settings = own.PromptSettings()
    assert not own.prompt_problems([])
    own.prepare(settings, None)
    assert own.LocalModelSettings is None and own.LOCAL_MODEL_NOTICE == ""
    assert settings.invented is None and settings.training_prompts is None
    assert not (settings.unread or settings.no_training or settings.no_local_model)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (WithModel, ""),
        (Own, ""),
        (type("Other", (), {}), "DataModule"),
        (type("Bare", (DataModule,), {}), "build_prompts"),
        (type("Loose", (Own,), {"PromptSettings": BaseModel}), "DataSettings"),
        (type("Silent", (WithModel,), {"LOCAL_MODEL_NOTICE": ""}), "LOCAL_MODEL_NOTICE"),
        (
            type("Mute", (Own,), {"LocalModelSettings": WarmStart, "LOCAL_MODEL_NOTICE": "x"}),
            "imitated_replies",
        ),
    ],
)
def test_a_class_that_does_not_fit_is_said(data, said):
    assert said in unfit_data(data) and bool(said) == bool(unfit_data(data))
