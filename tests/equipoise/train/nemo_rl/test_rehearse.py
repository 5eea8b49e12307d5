"""A rehearsal says at its end what took no part in it."""

import pytest

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.training_words import parse_flags
from equipoise.train.nemo_rl.rehearsal import rehearse
from equipoise.train.nemo_rl.rehearsal.rehearse import not_covered
from equipoise.train.nemo_rl.rehearsal.shrink import rehearsal_config

MEDIUM = f"--config={CONFIG_FOLDER / 'medium.yaml'}"
SPLIT = (
    "policy.dtensor_cfg.tensor_parallel_size=2",
    "policy.dtensor_cfg.lora_cfg.use_triton=false",
)


def left_out(*words: str) -> str:
    options = parse_flags("x", ("--rehearse", MEDIUM, *words))
    loaded = rehearsal_config("fairness", options, load_config("fairness", options))
    return ", ".join(not_covered(loaded.config))


def test_on_a_cpu_everything_of_a_gpu_and_what_is_stood_in_for():
    said = left_out()
    for part in ("CUDA", "NCCL", ", vLLM,", "bfloat16", "tensor par", "asynchr", "Megatron"):
        assert part in said


def test_what_the_command_line_brings_in_is_covered():
    assert "tensor parallelism" not in left_out(*SPLIT)


def test_on_gpus_less_is_left_out():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearse, "on_gpus", lambda: True)
        options = Options((CONFIG_FOLDER / "medium.yaml",))
        said = ", ".join(not_covered(load_config("fairness", options).config))
    assert "CUDA" not in said and "vLLM" not in said and "bfloat16" not in said
    assert "Megatron" in said
