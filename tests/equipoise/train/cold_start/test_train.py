"""The cold start learns replies, their ends included, and writes a model that loads by its name."""

import json

import pytest
import torch

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from environments.base import PromptRecord
from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.train.cold_start.train import save, train
from equipoise.train.local.engine import load_policy
from equipoise.train.local.generation import Sampling, sample
from tests.refusals import refusal

REPLY = "Drink water and rest."
GREEDY = Sampling(1, 12, 0.0, 1.0, None, 8, 0)


def asked(n):
    return ({"role": "user", "content": f"What about {n}?"},)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that gives one reply in four, and says most of the time that it does not know."""
    shown = [Example(asked(n % 40), "I do not know." if n % 4 else REPLY) for n in range(1600)]
    size = WarmStart(vocab_size=400, hidden_size=32, phrases=False, steps=100, batch_size=16)
    return str(warm_start(shown, size, tmp_path_factory.mktemp("cache")))


@pytest.fixture
def config(base):
    words = (
        *("--config=nemo_configs/local.yaml", f"--model-name={base}"),
        *("equipoise.cold_start.examples=320", "equipoise.cold_start.learning_rate=0.01"),
        "equipoise.cold_start.batch_size=20",  # no multiple of a micro batch
        *("policy.train_micro_batch_size=8", "policy.dtensor_cfg.lora_cfg.dim=16"),
    )
    return load_config("dharma", parse_flags("x", words)).config


def policy(config, name):
    return load_policy(config, str(name), torch.device("cpu"))


def replies(loaded, numbers):
    records = [PromptRecord(str(n), "t", asked(n), str(n), "test") for n in numbers]
    return {r.completion for r in sample(loaded, records, GREEDY, lambda _: None, lambda *_: None)}


@pytest.mark.deep
def test_it_says_the_reply_and_ends_after_it(base, config, tmp_path):
    examples = [Example(asked(n % 40), REPLY) for n in range(320)]
    told = []
    before = replies(policy(config, base), range(4))
    trained = train(policy(config, base), examples, config, told.append)
    save(trained, examples, config, tmp_path / "start")

    assert told == list(range(1, config.equipoise.cold_start.steps + 1))
    losses = list(trained.losses.values())
    assert len(losses) == len(told)
    assert losses[-1] < losses[0] / 2
    again = policy(config, tmp_path / "start")
    assert again.identity != trained.model.identity  # another model than its base
    assert before != {REPLY}
    assert replies(again, range(4)) == {REPLY}  # no token after the end of the reply


@pytest.mark.deep
def test_its_record_says_what_it_was_made_of(base, config, tmp_path):
    few = config.equipoise.cold_start.model_copy(update={"examples": 16})
    config = config.model_copy(
        update={"equipoise": config.equipoise.model_copy(update={"cold_start": few})}
    )
    made = []
    for name, reply in (("a", REPLY), ("b", REPLY), ("c", "Rest.")):
        examples = [Example(asked(n), reply) for n in range(16)]
        loaded = policy(config, base)
        save(train(loaded, examples, config, lambda _: None), examples, config, tmp_path / name)
        made.append(json.loads((tmp_path / name / "cold_start.json").read_text()))
        assert made[-1]["base"] == loaded.identity
    assert made[0] == made[1]  # the losses too
    assert made[0]["examples"]["sha256"] != made[2]["examples"]["sha256"]
    assert made[0]["lora"]["enabled"]
    assert made[0]["settings"]["examples"] == made[0]["examples"]["count"] == 16


def test_an_example_that_would_lose_its_end_is_refused(base, config):
    with refusal("first-stage.short-sequences", "256"):
        train(policy(config, base), [Example(asked(1), "no end " * 99)], config, print)
