"""Whether it is noticed that training, generation and export are not one policy."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl.rehearsal.comparison import (
    Rollouts,
    compare_policies,
    differences_from_training,
    exported_models,
    logprobs_of,
    read_rollouts,
    refuse_difference,
    rollouts_file,
    write_rollouts,
)
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
def rollouts():
    torch.manual_seed(0)
    ids = torch.randint(0, 32, (3, 10))
    return Rollouts(ids, torch.tensor([3, 4, 5]), torch.tensor([10, 8, 6]), {})


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def compared(base, rollouts, tmp_path):
    """How far the exported adapter on these layers is from the one that was trained."""

    def compare(*layers):
        model = LlamaForCausalLM.from_pretrained(base)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=list(layers)))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
        rollouts.logprobs["training"] = logprobs_of(model, rollouts, SAMPLING)
        model.save_pretrained(tmp_path / "final_checkpoint")
        for side, exported in exported_models(tmp_path / "final_checkpoint", str(base)):
            rollouts.logprobs[side] = logprobs_of(exported, rollouts, SAMPLING)
        return differences_from_training(rollouts)

    return compare


def test_an_adapter_is_the_same_policy_beside_its_model_and_merged(compared):
    differences = compared("q_proj", "down_proj")
    assert [d.side for d in differences] == ["final_checkpoint", "final_checkpoint merged"]
    assert max(d.nats for d in differences) < 1e-5
    refuse_difference(differences)


def test_an_adapter_on_a_tied_head_is_another_policy_once_it_is_merged(compared):
    differences = compared("q_proj", "lm_head")
    assert differences[0].nats < 1e-5
    with refusal("rehearsal.other-logprobs", "final_checkpoint merged"):
        refuse_difference(differences)


def test_weights_without_an_adapter_are_compared_too(base, rollouts):
    (side, model), *others = exported_models(base, "unused")
    assert (side, others) == ("base", [])
    assert logprobs_of(model, rollouts, SAMPLING).shape == rollouts.ids.shape


def test_only_completions_count_and_the_place_is_named(rollouts):
    training = torch.zeros(3, 10)
    other = training.clone()
    other[0, 2] = other[1, 8] = other[2, 9] = 9.0  # of a prompt, and padding
    other[1, 5] = -0.5
    sides = {"training": training, "generation": other}
    (difference,) = differences_from_training(replace(rollouts, logprobs=sides))
    assert (difference.side, difference.nats) == ("generation", 0.5)
    assert (difference.rollout, difference.token) == (1, 5)
    other[1, 5] = torch.nan
    with refusal("rehearsal.other-logprobs"):
        refuse_difference(differences_from_training(replace(rollouts, logprobs=sides)))


def test_logprobs_are_those_of_what_was_sampled_from(base, rollouts):
    ((_, model),) = exported_models(base, "unused")
    cold = SAMPLING.model_copy(update={"temperature": 0.5, "top_k": 4})
    logprobs = logprobs_of(model, rollouts, cold)
    logits = model(rollouts.ids[:1]).logits[0] / 0.5
    for at in range(1, int(rollouts.lengths[0])):
        kept, tokens = logits[at - 1].topk(4)
        chosen = tokens == rollouts.ids[0, at]
        expected = torch.log_softmax(kept, -1)[chosen].sum() if chosen.any() else -torch.inf
        assert float(logprobs[0, at]) == pytest.approx(float(expected), abs=1e-4)


def test_rollouts_come_back_from_their_file(rollouts, tmp_path):
    with refusal("rehearsal.no-rollouts"):
        read_rollouts(rollouts_file(tmp_path))
    kept = replace(rollouts, logprobs={"training": torch.rand(3, 10)})
    write_rollouts(rollouts_file(tmp_path), kept)
    read = read_rollouts(rollouts_file(tmp_path))
    assert torch.equal(read.ids, kept.ids)
    assert torch.equal(read.lengths, kept.lengths)
    assert torch.equal(read.logprobs["training"], kept.logprobs["training"])


def test_where_nothing_was_exported_the_rest_is_compared_and_that_is_said(base, rollouts, tmp_path):
    model = LlamaForCausalLM.from_pretrained(base)
    for side in ("training", "generation"):
        rollouts.logprobs[side] = logprobs_of(model, rollouts, SAMPLING)
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    write_rollouts(rollouts_file(run.root), rollouts)
    run.ledger.create({})
    warnings, lines = [], []
    job = SimpleNamespace(run=run, reporter=SimpleNamespace(warn=warnings.append, say=lines.append))
    compare_policies(job, exact=True)
    assert warnings == ["nothing was exported, so no final_checkpoint/ is compared"]
    assert list(run.ledger.read()["logprobs_differ_by"]) == ["generation"]
