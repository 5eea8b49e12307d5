"""Whether it is noticed that generation and export are not one policy."""

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.console import Reporter, printing_notes
from equipoise.run.directory import RunDirectory
from equipoise.run.history import append_row
from equipoise.run.ledger import Provenance
from equipoise.train.nemo_rl.rehearsal.rehearse import compare_policies, difference
from tests.refusals import refusal

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
SAMPLING = load_config("fairness", parse_flags("x", [])).config.policy.generation


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def conversations(model, sampling=SAMPLING):
    """Replies with the log-probabilities that a model gives them, one token after the other."""
    torch.manual_seed(0)
    replies = []
    for length in (10, 8, 6):
        ids = torch.randint(0, 32, (1, length))
        with torch.no_grad():
            logits = model(ids).logits[0] / sampling.temperature
        logprobs = torch.log_softmax(logits, -1)
        chosen = torch.stack([logprobs[n - 1, ids[0, n]] for n in range(3, length)])
        reply = {"token_ids": ids[0, 3:], "generation_logprobs": chosen}
        replies.append([{"token_ids": ids[0, :3]}, reply, {"token_ids": []}])
    return replies


@pytest.fixture
def compared(base, tmp_path, capsys):
    """Compare an exported adapter on these layers with the policy that was sampled."""

    def compare(*layers, exports=True, sampled=None):
        model = LlamaForCausalLM.from_pretrained(base)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=list(layers)))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
        run = RunDirectory(tmp_path / "run")
        run.root.mkdir()
        run.ledger.create(Provenance())
        append_row(run.history, {"step": 1, "token_mult_prob_error": 1.00001})
        if exports:
            model.save_pretrained(run.final_checkpoint)
        policy = SimpleNamespace(generation=SAMPLING)
        config = SimpleNamespace(policy=policy)
        job = SimpleNamespace(run=run, config=config, model_name=str(base))
        try:
            with printing_notes(Reporter()):
                compare_policies(job, conversations(sampled or model))
        finally:
            differ = json.loads(run.provenance.read_text())["logprobs_differ_by"]
        return differ, capsys.readouterr().out

    return compare


def test_an_adapter_is_the_policy_that_was_sampled(compared):
    differ, _ = compared("q_proj", "down_proj")
    assert list(differ) == ["training", "final_checkpoint"]
    assert 0 < max(differ.values()) < 2e-5


@pytest.mark.parametrize("layers", [("q_proj",), ("lm_head",)])
def test_one_that_was_not_sampled_is_refused(compared, base, layers):
    with refusal("rehearsal.other-logprobs", "final_checkpoint"):
        compared(*layers, sampled=LlamaForCausalLM.from_pretrained(base))


def test_where_nothing_was_exported_that_is_said(compared):
    differ, said = compared("q_proj", exports=False)
    assert list(differ) == ["training"]
    assert "final_checkpoint is not compared" in said


def test_logprobs_are_those_of_what_was_sampled_from(base):
    model = LlamaForCausalLM.from_pretrained(base)
    cold = SAMPLING.model_copy(update={"temperature": 0.5})
    replies = conversations(model, cold)
    assert difference(model, replies, cold) < 1e-5
    assert difference(model, replies, SAMPLING) > 0.1
    kept = cold.model_copy(update={"top_k": 1})
    assert difference(model, replies, kept) > 1e3  # tokens that were never drawn
    replies[1][1]["generation_logprobs"][2] = torch.nan
    assert difference(model, replies, cold) > 1e3
