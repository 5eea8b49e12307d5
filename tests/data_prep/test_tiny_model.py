"""The tiny model: its tokenizer, what it learns from, and a cache that cannot hold half a model."""

import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq
from transformers.utils import logging

from data_prep import tiny_model
from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, train_tokenizer, warm_start

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = WarmStart(hidden_size=16, layers=1, heads=1, steps=2, batch_size=4)
TURNS = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How are you?"})
EXAMPLES = [Example(TURNS, '{"mood": "good", "since": 3}'), Example(TURNS, "Fine, thank you.")] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return warm_start(EXAMPLES, SETTINGS, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def stub(monkeypatch):
    """Build a model without training; the list grows with every build."""
    built: list[int] = []

    class Model:
        def save_pretrained(self, path):
            (path / "model.safetensors").write_text("weights")
            built.append(len(built))

    monkeypatch.setattr(tiny_model, "imitate", lambda *_: Model())
    return built


@pytest.mark.deep
def test_the_folder_loads_as_any_model_does(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        list(TURNS), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(input_ids=prompt["input_ids"], max_new_tokens=3, do_sample=False)
    assert ids.shape[1] <= prompt["input_ids"].shape[1] + 3
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"


def test_a_recurring_phrase_is_one_token_beside_a_small_vocabulary():
    """Without the tokens that merging needs on the way, which nothing uses once it is whole."""
    phrase = "MRI shows a disc herniation that fills the canal. "
    examples = [Example(({"role": "user", "content": f"{phrase}{i} "},), "yes") for i in range(9)]
    tokenizer = train_tokenizer(examples, SETTINGS.model_copy(update={"vocab_size": 300}))
    assert len(tokenizer(phrase)["input_ids"]) == 1
    assert len(tokenizer) < 320
    unseen = "MRI shows no herniation. "
    assert tokenizer.decode(tokenizer(unseen)["input_ids"]) == unseen


def test_without_phrases_a_word_is_the_same_token_in_any_sentence():
    tokenizer = train_tokenizer(EXAMPLES * 4, SETTINGS.model_copy(update={"phrases": False}))
    seen, unseen = (tokenizer(text)["input_ids"] for text in ("Fine, thank you.", "No thank you!"))
    assert [t for t in seen if t in unseen] == tokenizer(" thank you")["input_ids"]


@pytest.mark.deep
def test_the_warm_start_can_be_repeated(folder, tmp_path):
    again = warm_start(EXAMPLES, SETTINGS, tmp_path)
    assert again.name == folder.name
    for file in folder.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


@pytest.mark.deep
def test_training_moves_the_weights_towards_the_answers(folder, tmp_path):
    """A few steps more lower the loss: the labels are the right ones."""
    longer = WarmStart(hidden_size=16, layers=1, heads=1, steps=40, batch_size=4)
    losses = []
    for path in (folder, warm_start(EXAMPLES * 20, longer, tmp_path)):
        tokenizer = AutoTokenizer.from_pretrained(path)
        row = tiny_model._tokenized(EXAMPLES[:1], tokenizer)[0]
        model = AutoModelForCausalLM.from_pretrained(path)
        batch = {name: torch.tensor([ids]) for name, ids in row.items()}
        losses.append(float(model(**batch).loss.detach()))
    assert losses[1] < 0.7 * losses[0]


@pytest.mark.deep
def test_at_answers_alone_the_same_is_learnt(folder, tmp_path, monkeypatch):
    """Weights are equal but for their last bits, from fewer positions of the output layer."""
    positions: list[int] = []
    forward = torch.nn.Linear.forward

    def watched(layer, hidden):
        if layer.out_features > 300:  # the vocabulary
            positions.append(hidden.shape[1])
        return forward(layer, hidden)

    monkeypatch.setattr(torch.nn.Linear, "forward", watched)
    found = AutoModelForCausalLM.from_pretrained(warm_start(EXAMPLES, SETTINGS, tmp_path / "a"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    longest = max(len(row["labels"]) for row in tiny_model._tokenized(EXAMPLES, tokenizer))
    assert positions
    assert max(positions) < longest
    monkeypatch.setattr(tiny_model, "_AnswersAlone", DataCollatorForSeq2Seq)
    expected = AutoModelForCausalLM.from_pretrained(warm_start(EXAMPLES, SETTINGS, tmp_path / "b"))
    assert max(positions) >= longest
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)


def test_nothing_is_printed_and_nothing_of_the_caller_is_changed(tmp_path, capfd):
    def draws():
        return random.random(), float(np.random.random()), float(torch.rand(1))

    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draws()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    warm_start(EXAMPLES, SETTINGS, tmp_path)
    assert draws() == expected
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


def test_other_examples_or_settings_are_another_model(tmp_path, stub):
    other = WarmStart(hidden_size=16, layers=1, heads=1, steps=3, batch_size=4)
    folders = {
        warm_start(EXAMPLES, SETTINGS, tmp_path),
        warm_start(list(EXAMPLES), SETTINGS, tmp_path),  # from the cache
        warm_start(EXAMPLES[1:], SETTINGS, tmp_path),
        warm_start(EXAMPLES, other, tmp_path),
    }
    assert len(folders) == len(stub) == 3


def _interrupted(*_):
    raise KeyboardInterrupt


def test_an_interrupted_build_leaves_nothing_that_counts_as_built(tmp_path, stub, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(tiny_model.PreTrainedTokenizerFast, "save_pretrained", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            warm_start(EXAMPLES, SETTINGS, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    found = warm_start(EXAMPLES, SETTINGS, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [found.name, f"{found.name}.lock"]
