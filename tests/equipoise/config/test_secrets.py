"""No key or password gets into a file of a run."""

import time

import pytest

from equipoise.config.secrets import masked, redacted, redacted_tree
from tests.equipoise.config.conftest import rows

KEY = "sk-" + "a1B2" * 8
VLLM = "policy.generation.vllm_kwargs"


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "-", "_", " ", '"', "'", ":", "=", "api_key", "api_key ", "eyJ-", "eyJa.", "sk-"),
        *("://", "://a:", "http://", "?key=", "bearer ", "-----BEGIN ", "AKIA", "hf_", "token='"),
    ],
)
def test_the_time_grows_with_the_length_alone(unit):
    def seconds(length):
        line = (unit * length)[:length]
        started = time.process_time()
        masked(line)
        return time.process_time() - started

    assert seconds(200_000) < max(0.5, 8 * seconds(50_000))


@pytest.fixture
def environment(monkeypatch):
    keys = {"JUDGE_API_KEY": KEY, "A_API_KEY": "plain-and", "B_API_KEY": "plain-and-more"}
    for name, value in {**keys, "SHORT_TOKEN": "none", "EDITOR": "a-common-editor"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for Bearer {KEY}", "401 for Bearer ***"),
        ("plain-and-more, plain-and", "***, ***"),
        ("none is a-common-editor", "none is a-common-editor"),
        ("http://me:pass@host/v1 and a@b.c", "http://***@host/v1 and a@b.c"),
        ("https://token@host, http://host/@x", "https://***@host, http://host/@x"),
    ],
)
def test_keys_and_passwords_are_blotted_out_and_nothing_else(text, shown):
    assert redacted(text) == shown


def test_a_tree_loses_what_its_names_call_secret():
    endpoint = {"api_key_env": "JUDGE_API_KEY", "url": "http://u:p@h", "api_key": "short"}
    rest = {"max_new_tokens": 5, "kl_token": 7}
    tree = {"endpoint": endpoint, "list": [{"password": "x"}, KEY, 3, None, True], **rest}
    assert redacted_tree(tree) == {
        "endpoint": endpoint | {"url": "http://***@h", "api_key": "***"},
        "list": [{"password": "***"}, "***", 3, None, True],
        **rest,
    }


#: What is set -> the key that is refused, where it lies deeper.
REFUSED = """
VLLM.api_key=x1 ->
VLLM.apiKey=x1 ->
VLLM.password=123456 ->
VLLM.headers={Authorization: x1} -> VLLM.headers.Authorization
VLLM.headers={X-Api-Key: x1} -> VLLM.headers.X-Api-Key
VLLM.api_keys=[x1, x2] -> VLLM.api_keys.0
VLLM.anything=KEY ->
VLLM.list=[a, {b: KEY}] -> VLLM.list.1.b
equipoise.output_dir=KEY ->
VLLM.url='http://me:hunter2@host/v1' ->
VLLM.url='https://hunter2@host/v1' ->
VLLM.url='https://host/v1?api_key=hunter2' ->
VLLM.header='Authorization: Bearer abcdef123456789' ->
policy.megatron_cfg.env_vars={HF_TOKEN: x1} -> policy.megatron_cfg.env_vars.HF_TOKEN
"""
ALLOWED = """
VLLM.api_key_env=OPENAI_API_KEY
VLLM.api_key=null
VLLM.api_key=''
VLLM.eos_token=<eos>
VLLM.max_new_tokens=48
VLLM.sort_key=name
VLLM.passed=yes
VLLM.url=http://localhost:8000/v1
VLLM.revision=4c1f8d2e9b0a4c1f8d2e9b0a4c1f8d2e9b0a4c1f
"""


@pytest.mark.parametrize(("word", "key"), rows(REFUSED))
def test_a_secret_is_refused_and_not_repeated(word, key, problems):
    word, key = (text.replace("VLLM", VLLM).replace("KEY", KEY) for text in (word, key))
    found, key = problems(word), key or word.partition("=")[0]
    assert any(line.startswith(f"command line: {key}: holds what looks like") for line in found)
    assert not any("hunter2" in line or KEY in line for line in found)


@pytest.mark.parametrize("word", ALLOWED.strip().splitlines())
def test_what_is_no_secret_is_allowed(word, problems):
    assert problems(word.replace("VLLM", VLLM)) == []


def test_a_key_in_the_place_of_a_number_is_not_repeated(problems):
    lines = problems(f"grpo.seed={KEY}")
    assert all("grpo.seed" in line and KEY not in line for line in lines)
    assert lines
