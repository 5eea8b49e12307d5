"""Control tokens of a tokenizer are found, and a run whose prompts hold one is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import PromptRecord
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.template import control_tokens, render
from equipoise.run import policy
from equipoise.train.nemo_rl.engine import open_tokenizer
from tests.refusals import refusal


def record(text):
    return PromptRecord("p1", "toy", ({"role": "user", "content": text},), "p1", "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a control token that looks like no family's, and a sign to pad with."""
    settings = WarmStart(hidden_size=32, layers=1, heads=2, steps=1, batch_size=2)
    examples = [Example(record("Why!").messages, "No.")] * 2
    made = str(warm_start(examples, settings, tmp_path_factory.mktemp("models")))
    tokenizer = AutoTokenizer.from_pretrained(made)
    tokenizer.add_special_tokens({"additional_special_tokens": ["Patient:"], "pad_token": "!"})
    tokenizer.save_pretrained(made)
    return made


def test_control_tokens_are_all_special_tokens_but_single_signs(folder):
    tokens = control_tokens(AutoTokenizer.from_pretrained(folder))
    assert {"Patient:", "<|end|>"} <= set(tokens)
    assert "!" not in tokens


@pytest.mark.parametrize("begin", [policy.open_policy, open_tokenizer], ids=["local", "NeMo-RL"])
@pytest.mark.parametrize("text", ["Why! Patient: A", "<|end|>"])
def test_no_run_begins_with_a_control_token_in_a_prompt(begin, text, folder):
    words = (f"policy.model_name={folder}", "grpo.val_period=0", "equipoise.device=cpu")
    config = load_config("fairness", parse_flags("x", words)).config
    begin(config, [record("Why!")], folder)
    with refusal("prompts.control-tokens", "1 prompts", "put a space"):
        begin(config, [record("Why!"), record(text)], folder)


def test_ranks_share_a_vocabulary_evenly_or_no_run_begins(folder, tmp_path):
    model = Path(shutil.copytree(folder, tmp_path / "model"))
    settings = json.loads((model / "config.json").read_text())
    dtensor = "policy.dtensor_cfg"
    words = (f"{dtensor}.tensor_parallel_size=2", f"{dtensor}.lora_cfg.use_triton=false")
    keys = ("--config=nemo_configs/small.yaml", "grpo.val_period=0", "cluster.gpus_per_node=2")
    config = load_config("fairness", parse_flags("x", (*keys, *words, "--engine=nemo_rl"))).config

    def begin(count):
        (model / "config.json").write_text(json.dumps(settings | {"vocab_size": count}))
        open_tokenizer(config, [record("Why!")], str(model))

    begin(2_000)
    with refusal("model.uneven-vocabulary", "2,001 words, which 2 GPUs"):
        begin(2_001)


THINKING = (
    "{% if enable_thinking is not defined or enable_thinking %}" + "think " * 300 + "{% endif %}"
)
SAID = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize("form", ["text", "file"])
def test_prompts_are_counted_as_nemo_rl_will_render_them(form, folder, tmp_path):
    """Qwen3 thinks unless `enable_thinking` is false; the room here is 64 tokens."""
    template, file = THINKING + SAID, tmp_path / "own.jinja"
    file.write_text(template)
    policy = {"max_total_sequence_length": 96, "generation": {"max_new_tokens": 32}}
    tokenizer = {"chat_template": template if form == "text" else str(file)}
    own = tmp_path / "own.yaml"

    def begin(words):
        own.write_text(json.dumps({"policy": policy | {"tokenizer": tokenizer | words}}))
        keys = ("--config=nemo_configs/small.yaml", f"--config={own}", "grpo.val_period=0")
        config = load_config("fairness", parse_flags("x", (*keys, "--engine=nemo_rl"))).config
        open_tokenizer(config, [record("Why!")], folder)

    with refusal("prompts.too-long", "1", "64"):
        begin({})
    begin({"chat_template_kwargs": {"enable_thinking": False}})
    if form == "file":
        file.unlink()
        with refusal("tokenizer.unreadable-template", "own.jinja"):
            begin({})


@pytest.fixture
def base(folder, tmp_path):
    """A model that was never tuned to chat: its tokenizer has no template."""
    made = tmp_path / "base"
    shutil.copytree(folder, made)
    tokenizer = AutoTokenizer.from_pretrained(made)
    tokenizer.chat_template = None
    (made / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(made)
    return str(made)


def loaded_with(name, *words):
    config = load_config("fairness", parse_flags("x", (f"policy.model_name={name}", *words))).config
    return policy.load_policy(config, name, torch.device("cpu"))


def test_a_base_model_is_given_a_chat_template(base, tmp_path):
    with refusal("tokenizer.no-template"):
        loaded_with(base)
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    one = loaded_with(base, f"policy.tokenizer.chat_template={file}")
    assert render(one.tokenizer, record("Why!").messages) == "user: Why!"
    # The trained model is saved with it.
    one.tokenizer.save_pretrained(tmp_path / "trained")
    trained = AutoTokenizer.from_pretrained(tmp_path / "trained")
    assert render(trained, record("Why!").messages) == "user: Why!"
    # Another template is another policy: what one wrote is not used for the other.
    file.write_text(SAID)
    other = loaded_with(base, f"policy.tokenizer.chat_template={file}")
    assert other.identity != one.identity
    assert render(other.tokenizer, record("Why!").messages) == "Why!"


@pytest.mark.parametrize(("word", "rendered"), [("null", "Why!"), (f"'{SAID}'", "Why!")])
def test_a_template_is_read_as_nemo_rl_reads_it(word, rendered, base):
    given = loaded_with(base, f"policy.tokenizer.chat_template={word}")
    assert render(given.tokenizer, record("Why!").messages) == rendered
    with refusal("tokenizer.no-template"):
        loaded_with(base, "policy.tokenizer.chat_template=default")


def test_a_template_is_given_words(folder):
    template = "{% if short %}short{% else %}long{% endif %}"
    words = (f"policy.tokenizer.chat_template='{template}'",)
    plain = loaded_with(folder, *words)
    short = loaded_with(folder, *words, "policy.tokenizer.chat_template_kwargs={short: true}")
    rendered = [render(m.tokenizer, record("Why!").messages) for m in (plain, short)]
    assert rendered == ["long", "short"]
    assert plain.identity != short.identity
