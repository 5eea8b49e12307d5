"""The arithmetic of a dry run."""

import pytest

from equipoise.config.dry_run import dry_run_rows
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.schedule import total_steps
from equipoise.config.task_code import set_size
from equipoise.config.workload import workload_of

ONE_INJURY = ("equipoise.data.cases=[whiplash]", "equipoise.data.leave_out=[]")


def table(loaded):
    records = loaded.data_module.build_prompts(loaded.prompt_settings)
    workload = workload_of(
        records, set_size(loaded.environment_class, loaded.env_settings), 8, blinds=True
    )
    rows = dry_run_rows(loaded.config, loaded.engine, workload)
    return {row.label: (row.value, row.note) for row in rows}


def test_every_row(load):
    rows = table(
        load(
            *("--num-samples", "400", "--batch-size", "32", "--iterations", "60"),
            *("--device", "cpu", *ONE_INJURY),
            *("grpo.num_generations_per_prompt=8", "equipoise.evaluation.generations=8"),
            *("policy.max_total_sequence_length=256", "policy.generation.max_new_tokens=48"),
        )
    )
    assert rows == {
        "engine": ("local", "cpu"),
        "model": ("local", "float32, LoRA, rank 32, alpha 64"),
        "train prompts": ("320", "80 sets of 4"),
        "validation prompts": ("20", "5 sets of 4"),
        "test prompts": ("60", "15 sets of 4"),
        "control prompts": ("15", ""),
        "prompts per step": ("32", "8 sets of 4"),
        "rollouts per step": ("256", "8 generations per prompt"),
        "updates per step": ("1", "of 256 rollouts"),
        "micro batches per update": ("8", "of 32 rollouts"),
        "tokens per step": ("<= 65,536", "256 per rollout"),
        "new tokens per step": ("<= 12,288", "48 per rollout"),
        "first stage": ("10,240 replies", "distilled in 160 steps"),
        "steps": ("60", ""),
        "reference generations": ("3,320", "8 of every prompt"),
        "baseline generations": ("480", "8 of every test prompt"),
        "probe generations": ("728", "of policies without skill"),
        "training generations": ("15,360", "60 steps of 256"),
        "final generations": ("480", "8 of every test prompt"),
        "generations in all": ("20,368", ""),
    }


def test_a_first_stage_has_a_row_where_there_is_one(load):
    words = ("--num-samples", "400", "equipoise.first_stage.batch_size=100")
    training = int(table(load(*words))["train prompts"][0].replace(",", ""))
    rows = table(load(*words, "equipoise.first_stage.passes=3"))
    steps = -(-3 * training // 100)
    assert rows["first stage"] == (f"{3 * training:,} replies", f"distilled in {steps} steps")
    assert "first stage" not in table(load(*words, "equipoise.first_stage.passes=0"))


def scale(name, *words):
    path = str(CONFIG_FOLDER / f"{name}.yaml")
    return ("--config", path, "--engine", "nemo_rl", "--num-samples", "400", *words)


def test_a_scale_of_several_nodes(load):
    rows = table(load(*scale("large", *ONE_INJURY)))
    assert rows["engine"] == ("nemo_rl", "4 nodes of 8 GPUs")
    assert rows["model"][1] == "bfloat16, Megatron, LoRA, rank 32, alpha 64"
    sequences = ("<= 512", "512 rollouts in batches of <= 4,096 tokens")
    assert rows["micro batches per rank"] == sequences
    assert rows["GPUs that train"] == ("32", "a copy on 8 tensor x 1 pipeline x 1 context")
    assert rows["data-parallel ranks"][0] == "4"
    assert rows["vLLM replicas"] == ("4", "8 GPUs each")
    assert rows["parameters"][0] == "70,553,706,496"
    assert rows["trained parameters"] == ("351,272,960", "LoRA of rank 32")
    # 40 validation prompts fill no batch of 128, so NeMo-RL takes them in one that is not full.
    assert rows["validation generations"] == ("7,040", "11 times 16 of 40 prompts")


def test_memory_is_shown_with_its_parts_and_formulas(load):
    rows = table(load(*scale("medium")))
    assert rows["micro batches per rank"] == ("32", "of 4 rollouts")
    assert rows["memory per GPU, training"] == ("~ 18.2 GB", "an estimate, in bytes:")
    assert rows["  weights"] == ("3.8 GB", "4 x 7,696,356,864 / 8 shards")
    assert rows["memory per GPU, vLLM"] == ("48.0 GB", "0.6 of 80 GB; weights and cache")
    assert rows["rollouts at once"][0] == "~ 4,464"


def test_memory_of_an_unknown_model_is_not_estimated(load):
    rows = table(load(*scale("medium", "--model-name", "nobody/has-this")))
    assert rows["memory per GPU"] == ("not estimated", "unknown: nobody/has-this")
    assert "parameters" not in rows
    assert rows["data-parallel ranks"][0] == "8"


def test_memory_of_a_gpu_of_unknown_size(load):
    rows = table(load(*scale("medium", "equipoise.gpu_memory_gb=null")))
    assert rows["memory per GPU, vLLM"] == ("not known", "equipoise.gpu_memory_gb is null")
    assert rows["memory per GPU, training"][0] == "~ 18.2 GB"


def test_without_validation_no_such_row(load):
    rows = table(load(*scale("medium", "grpo.val_period=0", "checkpointing.metric_name=null")))
    assert "validation generations" not in rows


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


def test_one_set_is_no_sets(load):
    assert table(load("--batch-size", "4"))["prompts per step"] == ("4", "1 set of 4")
