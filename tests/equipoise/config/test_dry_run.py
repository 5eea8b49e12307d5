"""The arithmetic of a dry run."""

import pytest

from equipoise.commands.start import dry_run_rows
from equipoise.config.schedule import total_steps, workload_of
from tests.equipoise.config.conftest import on_nemo_rl

ONE_INJURY = ("equipoise.data.cases=[whiplash]", "equipoise.data.leave_out=[]")


@pytest.fixture
def table(load):
    """Label -> value and note, of a run of 400 prompts."""

    def of(*words):
        loaded = load("--num-samples", "400", *words)
        records = loaded.data_module.build_prompts(loaded.prompt_settings)
        workload = workload_of(records, loaded.set_size, 8, blinds=True)
        found = dry_run_rows(loaded.config, loaded.engine, workload)
        return {row.label: (row.value, row.note) for row in found}

    return of


def test_every_row(table):
    assert table(
        *("--batch-size", "32", "--iterations", "60", "--device", "cpu", *ONE_INJURY),
        *("grpo.num_generations_per_prompt=8", "equipoise.evaluation.generations=8"),
        *("policy.max_total_sequence_length=256", "policy.generation.max_new_tokens=48"),
    ) == {
        "engine": ("local", "cpu"),
        "model": ("local", "float32, LoRA, rank 8, alpha 64"),
        "train prompts": ("320", "80 sets of 4"),
        "validation prompts": ("20", "5 sets of 4"),
        "test prompts": ("60", "15 sets of 4"),
        "control prompts": ("15", ""),
        "prompts per step": ("32", "8 sets of 4"),
        "rollouts per step": ("256", "8 generations per prompt"),
        "updates per step": ("1", "of 256 rollouts"),
        "micro batches per update": ("4", "of 64 rollouts"),
        "tokens per step": ("<= 65,536", "256 per rollout"),
        "new tokens per step": ("<= 12,288", "48 per rollout"),
        "steps": ("60", ""),
        "reference generations": ("3,320", "8 of every prompt"),
        "baseline generations": ("480", "8 of every test prompt"),
        "probe generations": ("728", "of trivial baselines"),
        "training generations": ("15,360", "60 steps of 256"),
        "final generations": ("480", "8 of every test prompt"),
        "generations in all": ("20,368", ""),
    }


def test_a_scale_of_several_nodes(table):
    found = table(*on_nemo_rl("large", *ONE_INJURY))
    assert found["engine"] == ("nemo_rl", "4 nodes of 8 GPUs")
    assert found["model"][1] == "bfloat16, Megatron, LoRA, rank 32, alpha 64"
    sequences = ("<= 512", "512 rollouts in batches of <= 4,096 tokens")
    assert found["micro batches per rank"] == sequences
    assert found["GPUs that train"] == ("32", "a copy on 8 tensor x 1 pipeline x 1 context")
    assert found["data-parallel ranks"][0] == "4"
    assert found["vLLM replicas"] == ("4", "8 GPUs each")
    assert found["parameters"][0] == "70,553,706,496"
    assert found["trained parameters"] == ("351,272,960", "LoRA of rank 32")
    # 40 validation prompts fill no batch of 128, so NeMo-RL takes them in one that is not full.
    assert found["validation generations"] == ("7,040", "11 times 16 of 40 prompts")


def test_memory_is_shown_with_its_parts_or_why_it_is_not(table):
    found = table(*on_nemo_rl("medium", "grpo.val_period=0", "checkpointing.metric_name=null"))
    assert found["micro batches per rank"] == ("32", "of 4 rollouts")
    least, note = found["memory per GPU, training"]
    assert least == ">= 4.0 GB"
    assert note.startswith("weights 3.8 GB, gradients 0.0 GB, optimizer 0.1 GB")
    share = ("48.0 GB", "0.6 of 80 GB; weights 15.2 GB; caches take the rest")
    assert found["memory per GPU, vLLM"] == share
    assert "validation generations" not in found
    found = table(*on_nemo_rl("medium", "--model-name", "nobody/has-this"))
    assert found["memory per GPU"] == ("not estimated", "unknown: nobody/has-this")
    assert "parameters" not in found
    assert found["data-parallel ranks"][0] == "8"
    found = table(*on_nemo_rl("medium", "equipoise.gpu_memory_gb=null"))
    assert found["memory per GPU, vLLM"] == ("not known", "equipoise.gpu_memory_gb is null")


@pytest.mark.parametrize(
    ("epochs", "prompts", "steps"), [(1, 320, 10), (2, 320, 20), (9, 320, 60), (1, 8, 1)]
)
def test_steps_end_with_the_epochs(epochs, prompts, steps, load):
    words = (f"grpo.max_num_epochs={epochs}", "--iterations", "60", "--batch-size", "32")
    assert total_steps(prompts, load(*words).config) == steps


def test_without_sets_or_reference_no_such_row(load, table):
    loaded = load("--num-samples", "400")
    records = loaded.data_module.build_prompts(loaded.prompt_settings)
    found = dry_run_rows(loaded.config, loaded.engine, workload_of(records))
    assert "reference generations" not in {row.label for row in found}
    assert {row.note for row in found if row.label == "prompts per step"} == {""}
    assert table("--batch-size", "4")["prompts per step"] == ("4", "1 set of 4")
