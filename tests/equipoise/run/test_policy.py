"""In which precision the local engine computes, and what it says of itself."""

from dataclasses import replace

import pytest
import torch

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.run.policy import load_policy, record_policy
from equipoise.train.local import grpo_arguments, with_adapter

HALF, FULL = "policy.precision=bfloat16", "policy.precision=float32"
LORA = "policy.dtensor_cfg.lora_cfg.enabled=true"
WHOLE = "policy.dtensor_cfg.lora_cfg.enabled=false"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    shown = [Example(({"role": "user", "content": "Q"},), "A")] * 4
    size = WarmStart(vocab_size=300, hidden_size=16, layers=1, steps=1, batch_size=4)
    return str(warm_start(shown, size, tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    ("words", "instructions", "in_half"),
    [
        ((HALF, LORA), {"avx512_bf16": True}, True),
        ((HALF, LORA), {"amx_bf16": True}, True),
        ((HALF, LORA), {"avx512_bf16": False, "avx2": True}, False),
        ((HALF, WHOLE), {"avx512_bf16": True}, False),
        ((FULL, LORA), {"avx512_bf16": True}, False),
    ],
)
def test_a_cpu_computes_in_bfloat16_where_it_can(
    words, instructions, in_half, tiny, job, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    config = load_config("fairness", parse_flags("x", words)).config
    loaded = load_policy(config, tiny, torch.device("cpu"))
    model = loaded.model
    assert (model.dtype == torch.bfloat16) is in_half
    assert grpo_arguments(config, tmp_path, model).bf16 is in_half
    record_policy(replace(job, loaded=replace(job.loaded, config=config)), loaded)
    assert ("in float32 here" in capsys.readouterr().out) is (HALF in words and not in_half)


def test_a_base_in_bfloat16_has_an_adapter_in_float32(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    config = load_config("fairness", parse_flags("x", (HALF, LORA))).config
    loaded = load_policy(config, tiny, torch.device("cpu"))
    model = with_adapter(loaded.model, config.policy.dtensor_cfg.lora_cfg)
    kinds = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert kinds
    assert set(kinds.values()) == {torch.float32}  # small updates vanish in bfloat16
