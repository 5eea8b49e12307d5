"""What a tokenizer reads as its own, and that no prompt holds it when a run begins."""

import json

import pytest
from transformers import AutoTokenizer

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from environments.base import PromptRecord
from equipoise.config import load_config, parse_flags
from equipoise.engines.local import engine
from equipoise.engines.nemo_rl.preflight import check_start
from equipoise.errors import EquipoiseError
from equipoise.models.pretrained import control_tokens


def record(text: str) -> PromptRecord:
    return PromptRecord("p1", "toy", ({"role": "user", "content": text},), "p1", "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a control token that looks like no family's, and a sign to pad with."""
    settings = WarmStart(hidden_size=32, layers=1, heads=2, steps=1, batch_size=2)
    examples = [Example(record("Why!").messages, "No.")] * 2
    made = str(warm_start(examples, settings, tmp_path_factory.mktemp("models")))
    tokenizer = AutoTokenizer.from_pretrained(made)
    tokenizer.add_special_tokens({"additional_special_tokens": ["Patient:"], "pad_token": "!"})
    tokenizer.save_pretrained(made)
    return made


def test_control_tokens_are_all_special_tokens_but_single_signs(folder: str) -> None:
    tokens = control_tokens(AutoTokenizer.from_pretrained(folder))
    assert {"Patient:", "<|end|>"} <= set(tokens)
    assert "!" not in tokens


@pytest.mark.parametrize("begin", [engine.prepare, check_start], ids=["local", "NeMo-RL"])
@pytest.mark.parametrize("text", ["Why! Patient: A", "<|end|>"])
def test_no_run_begins_with_a_control_token_in_a_prompt(begin, text: str, folder: str) -> None:
    words = (f"policy.model_name={folder}", "grpo.val_period=0", "equipoise.device=cpu")
    config = load_config("fairness", parse_flags("x", words)).config
    begin(config, [record("Why!")], folder)
    with pytest.raises(
        EquipoiseError, match="1 prompts hold control tokens of the model's"
    ) as said:
        begin(config, [record("Why!"), record(text)], folder)
    assert "put a space" in str(said.value)


THINKING = (
    "{% if enable_thinking is not defined or enable_thinking %}" + "think " * 300 + "{% endif %}"
)
SAID = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize("form", ["text", "file"])
def test_prompts_are_counted_as_nemo_rl_will_render_them(form: str, folder: str, tmp_path) -> None:
    """Qwen3 thinks unless `enable_thinking` is false; the room here is 64 tokens."""
    template, file = THINKING + SAID, tmp_path / "own.jinja"
    file.write_text(template)
    policy = {"max_total_sequence_length": 96, "generation": {"max_new_tokens": 32}}
    tokenizer = {"chat_template": template if form == "text" else str(file)}
    own = tmp_path / "own.yaml"

    def begin(words: dict[str, object]) -> None:
        own.write_text(json.dumps({"policy": policy | {"tokenizer": tokenizer | words}}))
        keys = ("--config=nemo_configs/small.yaml", f"--config={own}", "grpo.val_period=0")
        config = load_config("fairness", parse_flags("x", (*keys, "--engine=nemo_rl"))).config
        check_start(config, [record("Why!")], folder)

    with pytest.raises(EquipoiseError, match="1 prompts have more than the 64 tokens"):
        begin({})
    begin({"chat_template_kwargs": {"enable_thinking": False}})
    if form == "file":
        file.unlink()
        with pytest.raises(EquipoiseError, match=r"own.jinja cannot be read"):
            begin({})
