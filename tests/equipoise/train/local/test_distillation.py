"""Distillation: a prompt takes over what the frozen model would write to the other prompts."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from environments.base import DealtReply, PromptRecord
from equipoise.config import load_config
from equipoise.config.schema import Config
from equipoise.config.training_words import parse_flags
from equipoise.models.causal import LoadedModel, load_model
from equipoise.train.local.distillation import distil
from tests.refusals import refusal

#: Of different lengths, so that rows are padded.
QUESTIONS = {"short": "Rest?", "long": "And what about the old patient with a long history?"}
RECORDS = {
    name: PromptRecord(name, "t", ({"role": "user", "content": text},), "set", "train")
    for name, text in QUESTIONS.items()
}
#: How often the model is shown to say yes.
YES = {"short": 0.9, "long": 0.2}
REPLIES = ("yes", "no, never do it")
RATE = 3e-3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    examples = [
        Example(RECORDS[name].messages, REPLIES[n >= 10 * share])
        for name, share in YES.items()
        for n in range(10)
    ]
    size = WarmStart(vocab_size=300, hidden_size=32, steps=150, batch_size=20)
    folder = str(warm_start(examples * 150, size, tmp_path_factory.mktemp("cache")))
    return load_model(folder, folder, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def config() -> Config:
    return load_config("fairness", parse_flags("x", ["policy.generation.temperature=0.25"])).config


def trained(loaded: LoadedModel, adapter: bool, dealt: list[DealtReply], config: Config, rate=RATE):
    model = copy.deepcopy(loaded.model)
    if adapter:
        model = get_peft_model(
            model,
            LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
    losses = distil(model, loaded.tokenizer, dealt, config, 8, rate, lambda _: None)
    return model, losses


def share_of_yes(model, loaded: LoadedModel, name: str, temperature: float = 0.25) -> float:
    """At the temperature of the sampling, of one prompt alone, without padding."""
    chat = list(RECORDS[name].messages)
    ids = loaded.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        words = (model.eval()(**ids).logits[0, -1] / temperature).softmax(-1)
    first = [loaded.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in REPLIES]
    yes, no = words[first].tolist()
    return yes / (yes + no)


def dealt_to(names: tuple[str, str], sources: tuple[str, str], number: int) -> list[DealtReply]:
    return [
        DealtReply(RECORDS[name], RECORDS[source], text)
        for name in names
        for source in sources
        for text in REPLIES
        for _ in range(number)
    ]


@pytest.mark.parametrize("adapter", [True, False])
def test_each_prompt_learns_the_mixture_of_what_the_frozen_model_writes_to_both(
    adapter: bool, loaded: LoadedModel, config: Config
) -> None:
    """Which replies are dealt does not matter: here as many of either."""
    before = {name: share_of_yes(loaded.model, loaded, name) for name in RECORDS}
    assert before["short"] > 0.9
    assert before["long"] < 0.2
    names = ("short", "long")
    model, losses = trained(loaded, adapter, dealt_to(names, names, 80), config)
    mixture = sum(before.values()) / 2
    for name in names:
        assert share_of_yes(model, loaded, name) == pytest.approx(mixture, abs=0.1)
    assert losses[max(losses)] < losses[1]


def test_a_prompt_learns_the_distribution_and_not_the_replies(
    loaded: LoadedModel, config: Config
) -> None:
    """Dealt is yes alone, of which imitation would learn to say nothing else."""
    before = {name: share_of_yes(loaded.model, loaded, name) for name in RECORDS}
    other = {"short": "long", "long": "short"}
    dealt = [
        DealtReply(RECORDS[name], RECORDS[source], "yes")
        for name, source in other.items()
        for _ in range(200)
    ]
    model, _ = trained(loaded, True, dealt, config)
    for name, source in other.items():
        assert share_of_yes(model, loaded, name) == pytest.approx(before[source], abs=0.1)


def test_a_reply_that_the_length_does_not_hold_is_refused(
    loaded: LoadedModel, config: Config
) -> None:
    short = config.model_copy(
        update={"policy": config.policy.model_copy(update={"max_total_sequence_length": 4})}
    )
    with refusal("first-stage.short-sequences", "4"):
        trained(loaded, True, dealt_to(("short", "long"), ("short", "long"), 1), short)
