"""Keys that a user set, of another backend than the one that trains."""

import pytest

from equipoise.config.flags import CONFIG_FOLDER

MEGATRON, DTENSOR = "large", "medium"


@pytest.fixture
def unread(load):
    """The keys that a scale on NeMo-RL is said not to read, with more words."""

    def keys(scale, *words):
        path = str(CONFIG_FOLDER / f"{scale}.yaml")
        lines = load("--config", path, "--engine", "nemo_rl", *words).warnings
        told = [line.partition(" does not read ")[2] for line in lines if "does not read" in line]
        return [key for line in told for key in line.split(", ")]

    return keys


@pytest.mark.parametrize(
    ("scale", "word"),
    [
        (MEGATRON, "policy.optimizer.name=torch.optim.SGD"),
        (MEGATRON, "policy.dtensor_cfg.tensor_parallel_size=2"),
        (MEGATRON, "policy.dtensor_cfg.context_parallel_size=2"),
        (MEGATRON, "policy.dtensor_cfg.cpu_offload=true"),
        (MEGATRON, "policy.dtensor_cfg.lora_cfg.match_all_linear=false"),
        (DTENSOR, "policy.megatron_cfg.tensor_model_parallel_size=2"),
        (DTENSOR, "policy.megatron_cfg.optimizer.min_lr=0.0"),
        (DTENSOR, "policy.reward_model_cfg.enabled=true"),
        (DTENSOR, "policy.generation.sglang_cfg.tp_size=2"),
        (DTENSOR, "grpo.val_at_end=false"),
    ],
)
def test_a_key_of_another_backend_is_named(scale, word, unread):
    assert unread(scale, word) == [word.partition("=")[0]]


@pytest.mark.parametrize("scale", [MEGATRON, DTENSOR])
def test_what_is_followed_or_read_by_both_is_not(scale, unread):
    words = ("--learning-rate=1e-5", "--lora-rank=8", "policy.optimizer.kwargs.weight_decay=0.1")
    more = ("policy.dtensor_cfg.lora_cfg.dropout=0.1", "policy.generation.vllm_cfg.enforce_eager=1")
    assert unread(scale, *words, *more, "grpo.seed=3") == []


@pytest.mark.parametrize(
    ("scale", "word", "said"),
    [
        (DTENSOR, "checkpointing.save_optimizer=false", "a resumed run has a new optimizer"),
        (DTENSOR, "policy.generation.vllm_cfg.gpu_memory_utilization=0.95", "that training shares"),
    ],
)
def test_what_ends_equal_resume_or_fills_a_shared_gpu_is_warned_of(scale, word, said, load):
    path = str(CONFIG_FOLDER / f"{scale}.yaml")
    lines = load("--config", path, "--engine", "nemo_rl", word).warnings
    assert [said in line for line in lines] == [True]


@pytest.mark.parametrize(
    ("scale", "word", "key"),
    [
        (DTENSOR, "policy.generation.vllm_cfg.max_model_len=512", "vllm_cfg.max_model_len"),
        (MEGATRON, "policy.megatron_cfg.expert_model_parallel_size=2", "expert_model_parallel"),
    ],
)
def test_what_breaks_late_is_refused(scale, word, key, problems):
    path = str(CONFIG_FOLDER / f"{scale}.yaml")
    (line,) = problems("--config", path, "--engine", "nemo_rl", word)
    assert key in line
