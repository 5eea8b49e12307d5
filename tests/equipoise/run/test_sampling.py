"""Sampling: what is drawn, and with which random state."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GenerationConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import PromptRecord
from equipoise.run.ledger import Meter
from equipoise.run.model import load_model
from equipoise.run.sampling import (
    InverseTransformSampling,
    LoadedModel,
    Sampling,
    _processors,
    complete,
    sample,
    until_end,
)
from equipoise.train.local import draw_for_training

RECORDS = [
    PromptRecord(f"p{i}", "toy", ({"role": "user", "content": f"Q{i}"},), f"s{i}", "test")
    for i in range(10)
]
CPU = torch.device("cpu")
SAMPLING = Sampling(3, 12, 1.0, 1.0, None, 6, 7)  # five batches of two prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    shown = [Example(({"role": "user", "content": f"Q{i}"},), f"A{i}") for i in range(10)]
    size = WarmStart(vocab_size=300, hidden_size=16, layers=1, steps=1, batch_size=4)
    return str(warm_start(shown, size, tmp_path_factory.mktemp("cache")))


def opened(model):
    torch.set_num_threads(1)
    return LoadedModel(*load_model(model, model, dtype=torch.float32, device=CPU), "tiny")


def drawn(loaded):
    """All rollouts, what was counted, and how many there were whenever progress was told."""
    meter, told = Meter(), list[int]()
    rollouts = sample(loaded, RECORDS, SAMPLING, told.append, meter.add_tokens)
    return rollouts, meter, told


def test_tokens_are_drawn_as_often_as_their_probability_says():
    torch.manual_seed(0)
    shares = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    scores = shares.log().repeat(20_000, 1)
    drawn = InverseTransformSampling()(torch.empty(0), scores).argmax(dim=-1)
    counts = np.bincount(drawn, minlength=len(shares))
    possible = shares.numpy() > 0
    assert not counts[~possible].any()
    assert chisquare(counts[possible], 20_000 * shares.numpy()[possible]).pvalue > 1e-3


def test_a_word_of_no_probability_is_not_drawn_at_either_end(monkeypatch):
    scores = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).repeat(2, 1)
    extremes = torch.tensor([[0.0], [1 - 2.0**-24]])  # the least and the most that `rand` gives
    monkeypatch.setattr(torch, "rand", lambda *_size, **_device: extremes)
    drawn = InverseTransformSampling()(torch.empty(0), scores).argmax(dim=-1)
    assert drawn.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.75}, {0, 1}),
        ({"temperature": 0.01}, {0}),
    ],
)
def test_temperature_and_both_cuts_are_what_transformers_makes_of_them(changes, possible):
    torch.manual_seed(1)
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(500, 1)
    sampling = replace(SAMPLING, **changes)
    for processor in _processors(sampling):
        scores = processor(torch.zeros(500, 1, dtype=torch.long), scores)
    assert set(scores.argmax(dim=-1).tolist()) == possible


SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2}
HEADS = {**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}


@pytest.mark.parametrize(
    "network",
    [
        MistralForCausalLM(MistralConfig(**HEADS, sliding_window=None)),
        MistralForCausalLM(MistralConfig(**HEADS, sliding_window=4)),
        BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=16, n_layer=2, n_head=2)),
        MambaForCausalLM(MambaConfig(**SIZES, state_size=4)),
    ],
    ids=["attention", "sliding window", "without positions", "without keys and values"],
)
def test_the_shared_prefix_changes_no_reply(network, model):
    tokenizer = opened(model).tokenizer
    prompts = ["Q1", "Q2 and some more words", "Q3 " * 9]
    torch.manual_seed(2)
    for weights in network.parameters():  # apart enough for one likeliest token
        torch.nn.init.normal_(weights, std=0.3)
    network.eval()
    greedy = replace(SAMPLING, temperature=0.0, generations=2)
    inputs, tokens = complete(network, tokenizer, prompts, greedy)
    plain = network.generate(
        **inputs,
        generation_config=GenerationConfig(
            do_sample=False,
            max_new_tokens=greedy.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        ),
    )[:, inputs["input_ids"].shape[1] :]
    assert torch.equal(tokens, plain.repeat_interleave(2, dim=0))


def test_training_draws_what_an_evaluation_does(model):
    loaded = opened(model)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped),
        model_wrapped=loaded.model.train(),
        processing_class=loaded.tokenizer,
    )
    prompts = [loaded.render(record) for record in RECORDS for _ in range(SAMPLING.generations)]
    torch.manual_seed(SAMPLING.seed)
    rows = draw_for_training(SAMPLING)(prompts, trainer)
    assert loaded.model.training
    whole = replace(SAMPLING, batch_size=len(prompts))
    rollouts = sample(loaded, RECORDS, whole, lambda _: None, lambda *_: None)
    decode = partial(loaded.tokenizer.batch_decode, skip_special_tokens=True)
    assert decode(rows["completion_ids"]) == [rollout.completion for rollout in rollouts]
    assert loaded.tokenizer.batch_decode(rows["prompt_ids"]) == [r.prompt for r in rollouts]
    end = loaded.tokenizer.eos_token_id
    assert all(end not in row[:-1] for row in rows["completion_ids"])


def test_the_callers_random_state_is_left_as_it_was(model):
    loaded = opened(model)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    rollouts, meter, told = drawn(loaded)
    assert torch.equal(state, torch.get_rng_state())
    assert drawn(loaded)[0] == rollouts
    assert told == [6, 12, 18, 24, 30]
    lengths = [
        len(loaded.tokenizer(r.prompt, add_special_tokens=False).input_ids) for r in rollouts
    ]
    assert meter.tokens["prompt_tokens"] == sum(lengths)
    most = SAMPLING.max_new_tokens * len(rollouts)
    assert len(rollouts) <= meter.tokens["completion_tokens"] <= most


def test_tokens_of_completions_are_counted_to_their_end():
    end, pad = 7, 0
    drawn = [[1, 2, end, pad], [1, end, end, 5], [1, 2, 3, 4], [end, 1, 1, 1]]
    assert until_end(torch.tensor(drawn), end).sum(dim=1).tolist() == [3, 2, 4, 1]
