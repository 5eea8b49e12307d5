"""A rehearsal says at its end what took no part in it."""

import pytest

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.training_words import parse_flags
from equipoise.train.nemo_rl.rehearsal import rehearse
from equipoise.train.nemo_rl.rehearsal.rehearse import not_covered
from equipoise.train.nemo_rl.rehearsal.shrink import rehearsal_config

SCALE = CONFIG_FOLDER / "medium.yaml"
SPLIT = (
    "policy.dtensor_cfg.tensor_parallel_size=2",
    "policy.dtensor_cfg.lora_cfg.use_triton=false",
)


def left_out(*words: str) -> str:
    options = parse_flags("x", ("--rehearse", f"--config={SCALE}", *words))
    loaded = rehearsal_config("fairness", options, load_config("fairness", options))
    return ", ".join(not_covered(loaded.config))


def test_what_took_part_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = left_out()
    for part in ("CUDA", ", vLLM,", "bfloat16", "tensor par", "Megatron"):
        assert part in said
    assert "tensor parallelism" not in left_out(*SPLIT)
    monkeypatch.setattr(rehearse, "on_gpus", lambda: True)
    on_gpus = ", ".join(not_covered(load_config("fairness", Options((SCALE,))).config))
    assert not [part for part in ("CUDA", "vLLM", "bfloat16") if part in on_gpus]
    assert "Megatron" in on_gpus
