"""Keys that a user set and that what trains does not read."""

import pytest

from equipoise.config.compose import CONFIG_FOLDER
from tests.equipoise.config.conftest import on_nemo_rl, rows


def unread(loaded):
    """The keys that what trains is said not to read."""
    lines = [line.partition(" does not read ") for line in loaded.warnings]
    return [key for _, found, keys in lines if found for key in keys.split(", ")]


@pytest.mark.parametrize(
    "words",
    """
large policy.optimizer.name=torch.optim.SGD
large policy.dtensor_cfg.tensor_parallel_size=2
large policy.dtensor_cfg.lora_cfg.match_all_linear=false
medium policy.megatron_cfg.optimizer.min_lr=0.0
medium policy.reward_model_cfg.enabled=true
medium policy.generation.sglang_cfg.tp_size=2
medium grpo.val_at_end=false
medium equipoise.device=cpu
medium data.use_multiple_dataloader=true
medium data.train.dataset_name=squad
medium data.validation=[{"dataset_name":squad}]
""".strip().splitlines(),
)
def test_a_key_that_nemo_rl_does_not_read_is_named(words, load):
    words = words.split()
    assert unread(load(*on_nemo_rl(*words))) == [words[-1].partition("=")[0]]


@pytest.mark.parametrize("scale", ["large", "medium"])
def test_what_is_followed_or_read_by_both_is_not(scale, load):
    words = ("--learning-rate=1e-5", "--lora-rank=8", "policy.optimizer.kwargs.weight_decay=0.1")
    more = ("policy.dtensor_cfg.lora_cfg.dropout=0.1", "policy.generation.vllm_cfg.enforce_eager=1")
    data = ("data.num_workers=2", "data.max_input_seq_length=512", "grpo.seed=3")
    assert unread(load(*on_nemo_rl(scale, *words, *more, *data))) == []


@pytest.mark.parametrize(
    ("word", "said"),
    rows("""
checkpointing.save_optimizer=false -> a resumed run has a new optimizer
policy.generation.vllm_cfg.gpu_memory_utilization=0.95 -> that training shares
"""),
)
def test_what_ends_equal_resume_or_fills_a_shared_gpu_is_warned_of(word, said, load):
    assert [said in line for line in load(*on_nemo_rl("medium", word)).warnings] == [True]


def test_of_the_local_engine_it_lists_what_the_user_has_set(load, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "policy: {logprob_batch_size: 4, generation: {vllm_cfg: {enforce_eager: true}}}\n"
        "loss_fn: {reference_policy_kl_type: k1, ratio_clip_min: 0.1}\n"
    )
    files = ("--config", str(CONFIG_FOLDER / "local.yaml"), "--config", str(mine))
    words = ("policy.megatron_cfg.enabled=false", "grpo.val_at_end=true", "logger.wandb.name=x")
    assert unread(load(*files, "--learning-rate", "1e-4", *words)) == [
        "policy.logprob_batch_size",
        "policy.generation.vllm_cfg.enforce_eager",
        "loss_fn.reference_policy_kl_type",
        "policy.megatron_cfg.enabled",
        "grpo.val_at_end",
    ]


def test_the_local_engine_honours_every_named_flag_and_what_base_yaml_sets(load):
    loaded = load(
        *("--run-name", "x", "--seed", "1", "--num-samples", "64", "--iterations", "2"),
        *("--batch-size", "4", "--learning-rate", "1e-4", "--lora-rank", "4"),
        *("--device", "cpu", "--wandb-project", "p", "--wandb-entity", "e"),
    )
    assert "data.shuffle" in loaded.origins
    assert unread(loaded) == []
