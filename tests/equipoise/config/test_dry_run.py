"""The arithmetic of a dry run."""

import pytest

from equipoise.config.dry_run import dry_run_rows, total_steps, workload_of
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.task_code import set_size


def table(loaded):
    records = loaded.data_module.build_prompts(loaded.prompt_settings)
    workload = workload_of(records, set_size(loaded.environment_class), 8)
    rows = dry_run_rows(loaded.config, loaded.engine, workload)
    return {row.label: (row.value, row.note) for row in rows}


def test_every_row(load):
    rows = table(
        load(
            *("--num-samples", "400", "--batch-size", "32", "--iterations", "60"),
            *("--device", "cpu", "equipoise.data.cases=[whiplash]"),
            *("grpo.num_generations_per_prompt=8", "equipoise.evaluation.generations=8"),
            *("policy.max_total_sequence_length=256", "policy.generation.max_new_tokens=48"),
        )
    )
    assert rows == {
        "engine": ("local", "cpu"),
        "model": ("local", "float32, all weights"),
        "train prompts": ("280", "70 sets of 4"),
        "validation prompts": ("40", "10 sets of 4"),
        "test prompts": ("80", "20 sets of 4"),
        "control prompts": ("1", ""),
        "prompts per step": ("32", "8 sets of 4"),
        "rollouts per step": ("256", "8 generations per prompt"),
        "updates per step": ("1", "of 256 rollouts"),
        "micro batches per update": ("8", "of 32 rollouts"),
        "tokens per step": ("<= 65,536", "256 per rollout"),
        "new tokens per step": ("<= 12,288", "48 per rollout"),
        "steps": ("60", ""),
        "reference generations": ("3,208", "8 of every prompt"),
        "baseline generations": ("640", "8 of every test prompt"),
        "training generations": ("15,360", "60 steps of 256"),
        "final generations": ("640", "8 of every test prompt"),
        "generations in all": ("19,848", ""),
    }


def test_a_scale_of_several_nodes(load):
    rows = table(load("--config", str(CONFIG_FOLDER / "large.yaml"), "--num-samples", "400"))
    assert rows["engine"] == ("nemo_rl", "4 nodes of 8 GPUs")
    assert rows["model"][1] == "bfloat16, LoRA, rank 32, alpha 64"


@pytest.mark.parametrize(
    ("epochs", "prompts", "steps"), [(1, 320, 10), (2, 320, 20), (9, 320, 60), (1, 8, 1)]
)
def test_steps_end_with_the_epochs(epochs, prompts, steps, load):
    words = (f"grpo.max_num_epochs={epochs}", "--iterations", "60", "--batch-size", "32")
    config = load(*words).config
    assert total_steps(prompts, config) == steps


def test_without_sets_or_reference_no_such_row(load):
    loaded = load("--num-samples", "400")
    records = loaded.data_module.build_prompts(loaded.prompt_settings)
    rows = dry_run_rows(loaded.config, loaded.engine, workload_of(records))
    assert "reference generations" not in {row.label for row in rows}
    assert {row.note for row in rows if row.label == "prompts per step"} == {""}
