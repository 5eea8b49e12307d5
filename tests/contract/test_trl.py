"""Parts of TRL on which the local engine relies, checked against the installed version."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import Failure, PromptRecord
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.run.history import Row
from equipoise.run.job import FailureMonitor
from equipoise.run.ledger import Meter
from equipoise.run.rollouts import TrainingRollouts
from equipoise.run.sampling import LoadedModel
from equipoise.train.local import (
    StepRecorder,
    build_trainer,
    latest_checkpoint,
    train_rows,
    trainable,
)

SETS, SIZE, GENERATIONS = 5, 4, 3
RECORDS = [
    PromptRecord(
        f"{s}/{v}", "toy", ({"role": "user", "content": f"case {s}, {v}"},), f"{s}", "train"
    )
    for s in range(SETS)
    for v in range(SIZE)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    examples = [Example(record.messages, "yes, it is") for record in RECORDS]
    settings = WarmStart(steps=1, batch_size=2, vocab_size=400)
    return warm_start(examples, settings, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def loaded(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    return LoadedModel(model, AutoTokenizer.from_pretrained(folder), "x")


@pytest.fixture
def config():
    words = [
        f"grpo.num_prompts_per_step={2 * SIZE}",
        f"grpo.num_generations_per_prompt={GENERATIONS}",
        "policy.generation.max_new_tokens=4",
        "checkpointing.enabled=false",
        "--iterations=4",
    ]
    return load_config("fairness", parse_flags("x", words)).config


class Spy:
    """A reward that remembers how it was called; every second call of a prompt is unscored."""

    __name__ = "spy"

    def __init__(self):
        self.calls: list[list[int]] = []

    def __call__(self, *, completions, index, **_):
        self.calls.append(index)
        return [None if i % GENERATIONS == 1 else float(i) for i in range(len(completions))]


@pytest.fixture
def advantages(monkeypatch):
    from trl import GRPOTrainer

    seen: list[torch.Tensor] = []
    original = GRPOTrainer._generate_and_score_completions

    def spying(self, inputs):
        output = original(self, inputs)
        seen.append(output["advantages"].clone())
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", spying)
    return seen


def test_a_step_is_one_call_with_whole_sets_and_adjacent_siblings(
    loaded, config, tmp_path, advantages
):
    spy = Spy()
    build_trainer(trainable(loaded, config), loaded, RECORDS, spy, config, tmp_path).train()
    assert len(spy.calls) == 4
    for index in spy.calls:
        prompts = index[::GENERATIONS]
        assert index == [i for i in prompts for _ in range(GENERATIONS)]
        for start in range(0, len(prompts), SIZE):
            members = prompts[start : start + SIZE]
            assert len({RECORDS[i].set_id for i in members}) == 1
            assert len(set(members)) == SIZE


def test_an_unscored_rollout_has_no_advantage_and_does_not_shift_its_siblings(
    loaded, config, tmp_path, advantages
):
    spy = Spy()
    build_trainer(trainable(loaded, config), loaded, RECORDS, spy, config, tmp_path).train()
    for found in advantages:
        groups = found.reshape(-1, GENERATIONS)
        assert (groups[:, 1] == 0).all()
        # Rewards i and i + 2 around their own mean, not divided by a deviation.
        torch.testing.assert_close(groups[:, 0], -torch.ones(len(groups)))
        torch.testing.assert_close(groups[:, 2], torch.ones(len(groups)))


def recording(folder, monitor, rows):
    file = TrainingRollouts(folder / "rollouts.jsonl", limit=1, steps=4)
    history, meter = folder / "history.jsonl", Meter()
    return StepRecorder(history, file, lambda *_: (), monitor, meter, rows.append, lambda: False)


def test_the_tokens_of_training_are_those_that_trl_was_given(loaded, config, tmp_path):
    """TRL tells a running total of both kinds, and a mean length of the completions."""
    written = []

    def reward(*, completion_ids, index, **_):
        written.extend(map(len, completion_ids))
        return [float(i % 2) for i in range(len(index))]

    recorder = recording(tmp_path, FailureMonitor(max_rate=0.5, window=1), [])
    build_trainer(
        trainable(loaded, config), loaded, RECORDS, reward, config, tmp_path, recorder
    ).train()
    meter = recorder.meter
    steps, per_step = 4, 2 * SIZE * GENERATIONS
    assert len(written) == steps * per_step
    assert meter.tokens["completion_tokens"] == sum(written)
    rows = list(train_rows(RECORDS, loaded, config)["prompt"])
    lengths = [len(ids) for ids in loaded.tokenizer(rows, add_special_tokens=False)["input_ids"]]
    assert meter.tokens["prompt_tokens"] == GENERATIONS * sum(lengths)


def test_too_many_failures_end_training_with_a_checkpoint(loaded, config, tmp_path):
    monitor = FailureMonitor(max_rate=0.5, window=1)

    def score(*, completions, **_):
        monitor.add([Failure("transport_unreachable", "judge is down")] * len(completions))
        return [None] * len(completions)

    kept = config.checkpointing.model_copy(update={"enabled": True})
    config = config.model_copy(update={"checkpointing": kept})
    rows: list[Row] = []
    recorder = recording(tmp_path, monitor, rows)
    trainer = build_trainer(
        trainable(loaded, config), loaded, RECORDS, score, config, tmp_path, recorder
    )
    trainer.train()
    assert trainer.state.global_step == 1
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert (checkpoint.path / "history.jsonl").read_text() == recorder.history.read_text()
    assert [row["step"] for row in rows] == [1], "the step is logged before it is saved"
    assert "judge is down" in str(monitor.error())
