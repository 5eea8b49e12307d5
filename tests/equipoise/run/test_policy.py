"""In which precision the local engine computes, and what it says of itself."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.run.policy import load_policy, load_trained, record_policy
from equipoise.train.local import grpo_arguments, trainable, with_adapter

HALF, FULL = "policy.precision=bfloat16", "policy.precision=float32"
LORA = "policy.dtensor_cfg.lora_cfg.enabled=true"
WHOLE = "policy.dtensor_cfg.lora_cfg.enabled=false"
FOUR_BITS = "equipoise.load_in_4bit=true"


def settings(*words):
    return load_config("fairness", parse_flags("x", words)).config


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
    config = settings(*words)
    loaded = load_policy(config, tiny, torch.device("cpu"))
    model = loaded.model
    assert (model.dtype == torch.bfloat16) is in_half
    assert grpo_arguments(config, tmp_path, model).bf16 is in_half
    record_policy(replace(job, loaded=replace(job.loaded, config=config)), loaded)
    assert ("in float32 here" in capsys.readouterr().out) is (HALF in words and not in_half)


def test_a_base_in_bfloat16_has_an_adapter_in_float32(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    config = settings(HALF, LORA)
    loaded = load_policy(config, tiny, torch.device("cpu"))
    model = with_adapter(loaded.model, config.policy.dtensor_cfg.lora_cfg)
    kinds = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert kinds
    assert set(kinds.values()) == {torch.float32}  # small updates vanish in bfloat16


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="uv sync --extra 4bit")
class TestFourBits:
    @pytest.fixture
    def folder(self, tmp_path):
        """A model of two layers with the tokenizer of words that it needs."""
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64}
        layout = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        Qwen2ForCausalLM(Qwen2Config(**sizes, **layout)).save_pretrained(tmp_path / "model")
        words = Tokenizer(WordLevel({"a": 0, "<pad>": 1}, unk_token="a"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
        tokenizer.chat_template = "{{ messages[0].content }}"
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    def load(self, folder, *words):
        return load_policy(settings("--lora-rank=4", FULL, *words), folder, torch.device("cpu"))

    def test_the_layers_take_an_eighth_and_it_is_another_policy(self, folder):
        wide, narrow = self.load(folder), self.load(folder, FOUR_BITS)
        layer = narrow.model.model.layers[0].mlp.up_proj.weight
        assert layer.nbytes == wide.model.model.layers[0].mlp.up_proj.weight.nbytes / 8
        assert narrow.identity != wide.identity

    def test_a_lora_above_it_is_trained_and_loads_again_above_4_bits(self, folder, tmp_path):
        base = self.load(folder, FOUR_BITS)
        before = base.model.model.layers[0].mlp.up_proj.weight.clone()
        model = trainable(base, settings("--lora-rank=4", FOUR_BITS))
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
        tokens = torch.arange(16)[None]
        for _ in range(3):
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
        model.save_pretrained(tmp_path / "trained")
        again = load_trained(replace(base, model=model), tmp_path / "trained", torch.device("cpu"))
        assert torch.equal(before, model.base_model.model.model.layers[0].mlp.up_proj.weight)
        assert again.model.get_base_model().is_loaded_in_4bit
        with torch.no_grad():
            # A processor's own instructions round in their own way; the adapter moves logits by 1.
            assert torch.allclose(again.model(tokens).logits, model(tokens).logits, atol=1e-3)
            assert not torch.allclose(
                again.model(tokens).logits, self.load(folder, FOUR_BITS).model(tokens).logits
            )

    def test_generating_leaves_the_gradients_of_training_as_they_are(self, folder):
        """bitsandbytes packs weights for a processor that has AVX512-BF16, and none flow there."""
        tokens, gradients = torch.arange(16)[None], []
        for generates in (False, True):
            model = self.load(folder, FOUR_BITS).model
            if generates:
                with torch.no_grad():
                    model(tokens)
            embeddings = model.get_input_embeddings().requires_grad_(True)
            model.train()(tokens, labels=tokens).loss.backward()
            gradients.append(embeddings.weight.grad)
        assert torch.equal(*gradients)
