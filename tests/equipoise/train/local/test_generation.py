"""Sampling: what is drawn, and in parts: a kill costs the part in the making, and no bit."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
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
    PreTrainedModel,
)

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from environments.base import PromptRecord, Rollout
from equipoise.models.causal import LoadedModel, load_model
from equipoise.run.directory import RunDirectory
from equipoise.run.usage import Meter
from equipoise.train.local import generation
from equipoise.train.local.generation import Sampling, sample
from equipoise.train.stages.around_training import KeptParts

ROOT = Path(__file__).resolve().parents[4]
RECORDS = [
    PromptRecord(f"p{i}", "toy", ({"role": "user", "content": f"Q{i}"},), f"s{i}", "test")
    for i in range(10)
]
SAMPLING = Sampling(3, 12, 1.0, 1.0, None, 6, 7)  # five batches of two prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    shown = [Example(({"role": "user", "content": f"Q{i}"},), f"A{i}") for i in range(10)]
    size = WarmStart(vocab_size=300, hidden_size=16, layers=1, steps=1, batch_size=4)
    return str(warm_start(shown, size, tmp_path_factory.mktemp("cache")))


def opened(model: str) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(model, model, dtype=torch.float32, device=torch.device("cpu"))


def drawn(
    loaded: LoadedModel, root: Path | None = None, decided_by: str = "this"
) -> tuple[list[Rollout], Meter, list[int]]:
    """All rollouts, what was counted, and how many there were whenever progress was told."""
    meter, told = Meter(), list[int]()
    job = SimpleNamespace(run=RunDirectory(root), meter=meter) if root else None
    kept = KeptParts(job, "baseline", RECORDS, decided_by) if job else None  # type: ignore[arg-type]
    rollouts = sample(loaded, RECORDS, SAMPLING, told.append, meter.add_tokens, kept)
    return rollouts, meter, told


def kill_within(part: int) -> None:
    """This process dies while it generates the part."""
    left, batch = [part], generation._sample_batch

    def dying(*arguments: object) -> object:
        if left[0] == 0:
            sys.stdout.flush()
            signal.raise_signal(signal.SIGKILL)
        left[0] -= 1
        return batch(*arguments)  # type: ignore[arg-type]

    generation._sample_batch = dying  # type: ignore[assignment]


def kill_before_seal(part: int) -> None:
    """This process dies between the writing of the part and its seal."""
    from equipoise.train.stages import around_training

    seal = around_training.seal_file

    def dying(path: Path) -> None:
        if path.name == f"part-{part:05}.jsonl":
            signal.raise_signal(signal.SIGKILL)
        seal(path)

    around_training.seal_file = dying


def killed(model: str, root: Path, kill: Callable[[int], None], part: int) -> None:
    """Draw in a process of its own that dies there."""
    code = (
        f"from pathlib import Path; from tests.equipoise.train.local.test_generation import *; "
        f"{kill.__name__}({part}); drawn(opened({model!r}), Path({str(root)!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    torch.manual_seed(0)
    shares = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    scores = shares.log().expand(20_000, -1)
    drawn = generation.InverseTransformSampling()(torch.empty(0), scores).argmax(dim=-1)
    counts = np.bincount(drawn, minlength=len(shares))
    possible = shares.numpy() > 0
    assert not counts[~possible].any()
    assert chisquare(counts[possible], 20_000 * shares.numpy()[possible]).pvalue > 1e-3


def test_a_word_of_no_probability_is_not_drawn_at_either_end(monkeypatch) -> None:
    scores = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).repeat(2, 1)
    extremes = torch.tensor([[0.0], [1 - 2.0**-24]])  # the least and the most that `rand` gives
    monkeypatch.setattr(torch, "rand", lambda *_size, **_device: extremes)
    drawn = generation.InverseTransformSampling()(torch.empty(0), scores).argmax(dim=-1)
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
def test_temperature_and_both_cuts_are_what_transformers_makes_of_them(
    changes: dict[str, float], possible: set[int]
) -> None:
    torch.manual_seed(1)
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(500, 1)
    sampling = replace(SAMPLING, **changes)
    for processor in generation._processors(sampling):
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
def test_the_shared_prefix_changes_no_reply(network: PreTrainedModel, model: str) -> None:
    tokenizer = opened(model).tokenizer
    prompts = ["Q1", "Q2 and some more words", "Q3 " * 9]
    torch.manual_seed(2)
    for weights in network.parameters():  # apart enough for one likeliest token
        torch.nn.init.normal_(weights, std=0.3)
    network.eval()
    greedy = replace(SAMPLING, temperature=0.0, generations=2)
    inputs, tokens = generation._complete(network, tokenizer, prompts, greedy)
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


def test_training_draws_what_an_evaluation_does(model: str) -> None:
    loaded = opened(model)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped),
        model_wrapped=loaded.model.train(),
        processing_class=loaded.tokenizer,
    )
    chats = [list(record.messages) for record in RECORDS for _ in range(SAMPLING.generations)]
    torch.manual_seed(SAMPLING.seed)
    rows = generation.draw_for_training(SAMPLING)(chats, trainer)
    assert loaded.model.training
    whole = replace(SAMPLING, batch_size=len(chats))
    rollouts = sample(loaded, RECORDS, whole, lambda _: None, lambda *_: None)
    decode = partial(loaded.tokenizer.batch_decode, skip_special_tokens=True)
    assert decode(rows["completion_ids"]) == [rollout.completion for rollout in rollouts]
    assert loaded.tokenizer.batch_decode(rows["prompt_ids"]) == [r.prompt for r in rollouts]
    end = loaded.tokenizer.eos_token_id
    assert all(end not in row[:-1] for row in rows["completion_ids"])


@pytest.mark.deep
def test_a_draw_that_is_killed_between_and_within_parts_is_that_of_an_uninterrupted_one(
    model: str, tmp_path: Path
) -> None:
    killed(model, tmp_path, kill_within, 2)
    folder = tmp_path / "parts" / "baseline"
    parts = sorted(path.name for path in folder.glob("*.jsonl"))
    assert parts == ["part-00000.jsonl", "part-00001.jsonl"]
    before = [(folder / name).stat().st_mtime_ns for name in parts]
    killed(model, tmp_path, kill_before_seal, 3)
    loaded = opened(model)
    whole, whole_meter, _ = drawn(loaded)
    rollouts, meter, told = drawn(loaded, tmp_path)
    assert rollouts == whole
    assert len({rollout.completion for rollout in whole}) > 5
    assert told == [6, 12, 18, 24, 30]
    assert [(folder / name).stat().st_mtime_ns for name in parts] == before  # not drawn again
    # The stage's account has all tokens, the run's what this process has added.
    assert meter.tokens == whole_meter.tokens
    assert 0 < meter.usage()["completion_tokens"] < whole_meter.usage()["completion_tokens"]


def test_the_callers_random_state_is_left_as_it_was(model: str, tmp_path: Path) -> None:
    loaded = opened(model)
    states = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn(loaded, tmp_path)
        states.append(torch.get_rng_state())
    torch.manual_seed(1)
    assert all(torch.equal(state, torch.get_rng_state()) for state in states)


@pytest.mark.parametrize("damaged", ["", "the part", "the list"])
def test_parts_of_something_else_and_damaged_ones_are_drawn_again(
    model: str, tmp_path: Path, damaged: str
) -> None:
    loaded = opened(model)
    whole, *_ = drawn(loaded, tmp_path)
    folder = tmp_path / "parts" / "baseline"
    part = folder / "part-00001.jsonl"
    if damaged == "the part":
        part.write_text(part.read_text().replace('"completion": "', '"completion": "forged '))
    elif damaged == "the list":
        (folder / "part-00001.jsonl.complete").write_text("[]")
    rollouts, meter, _ = drawn(loaded, tmp_path, "this" if damaged else "another model")
    assert rollouts == whole
    assert "forged" not in part.read_text()
    fresh, all_of_it = meter.usage()["completion_tokens"], meter.tokens["completion_tokens"]
    assert 0 < fresh < all_of_it if damaged else fresh == all_of_it
