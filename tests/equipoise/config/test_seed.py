"""`--seed` moves all that chance decides in a local run: split, data, model and training."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from environments.base import PromptRecord
from equipoise.config import LoadedConfig, load_config
from equipoise.config.training_words import parse_flags
from tests.equipoise.config.test_shipped import TASKS

SEEDS = (101, 102)


@cache
def loaded(task: str, seed: int) -> LoadedConfig:
    words = ("--config=nemo_configs/local.yaml", f"--seed={seed}")
    return load_config(task, parse_flags("", words))


@cache
def prompts(task: str, seed: int) -> tuple[PromptRecord, ...]:
    run = loaded(task, seed)
    return tuple(run.data_module.build_prompts(run.prompt_settings))


def texts(task: str, seed: int, split: str) -> frozenset[str]:
    return frozenset(r.messages[-1]["content"] for r in prompts(task, seed) if r.split == split)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_another_seed_has_other_prompts(task: str, split: str) -> None:
    one, other = (texts(task, seed, split) for seed in SEEDS)
    assert one
    assert len(one - other) > len(one) / 4
    assert len(other - one) > len(other) / 4


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_the_same_seed_has_the_same_prompts(task: str) -> None:
    run = loaded(task, SEEDS[0])
    again = run.data_module.build_prompts(run.prompt_settings)
    assert tuple(again) == prompts(task, SEEDS[0])


@pytest.mark.parametrize("task", TASKS)
def test_the_local_model_training_and_sampling_follow_the_seed(task: str) -> None:
    for seed in SEEDS:
        run = loaded(task, seed)
        data: Mapping[str, Any] = run.resolved["equipoise"]["data"]
        assert run.config.grpo.seed == seed
        assert run.config.equipoise.evaluation.seed == seed
        assert run.local_model_settings is not None
        assert run.local_model_settings.model_dump()["seed"] == seed
        assert {settings["seed"] for settings in data.get("tasks", {task: data}).values()} == {seed}


@pytest.mark.parametrize("task", TASKS)
def test_the_warm_start_of_another_seed_imitates_other_replies(task: str) -> None:
    module = import_module(f"{loaded(task, SEEDS[0]).data_module.name}.local_model")
    shown = []
    for seed in SEEDS:
        settings = loaded(task, seed).local_model_settings
        assert settings is not None
        few = settings.model_copy(update={"steps": 4})
        replies = module.imitated_replies(prompts(task, seed), few)
        shown.append({(str(record.messages), reply) for record, reply in replies})
    assert shown[0]
    assert len(shown[0] & shown[1]) < len(shown[0]) / 2
