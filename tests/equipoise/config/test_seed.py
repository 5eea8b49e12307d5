"""`--seed` moves all that chance decides in a local run: split, data, model and training."""

from functools import cache

import pytest

from equipoise.config import load_config
from equipoise.config.words import parse_flags
from tests.equipoise.config.test_shipped import TASKS

SEEDS = (101, 102)


@cache
def loaded(task, seed):
    words = ("--config=nemo_configs/local.yaml", f"--seed={seed}")
    return load_config(task, parse_flags("", words))


@cache
def prompts(task, seed):
    run = loaded(task, seed)
    return tuple(run.data_module.build_prompts(run.prompt_settings))


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_another_seed_has_other_prompts_and_one_of_the_same_has_the_same(task):
    for split in ("train", "test"):
        one, other = (
            {r.messages[-1]["content"] for r in prompts(task, seed) if r.split == split}
            for seed in SEEDS
        )
        assert one
        assert len(one - other) > len(one) / 4
        assert len(other - one) > len(other) / 4
    run = loaded(task, SEEDS[0])
    assert tuple(run.data_module.build_prompts(run.prompt_settings)) == prompts(task, SEEDS[0])


@pytest.mark.parametrize("task", TASKS)
def test_the_local_model_training_and_sampling_follow_the_seed(task):
    shown = []
    for seed in SEEDS:
        run = loaded(task, seed)
        assert run.config.grpo.seed == run.config.equipoise.evaluation.seed == seed
        assert run.local_model_settings.seed == run.resolved["equipoise"]["data"]["seed"] == seed
        few = run.local_model_settings.model_copy(update={"steps": 4})
        replies = run.data_module.imitated_replies(prompts(task, seed), few)
        shown.append({(str(record.messages), reply) for record, reply in replies})
    assert shown[0]
    assert len(shown[0] & shown[1]) < len(shown[0]) / 2, "the warm start imitates other replies"
