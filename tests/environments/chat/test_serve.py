"""End to end with a server that is not ours: `transformers serve` with a tiny model."""

import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from environments.chat import ChatRequest, EndpointModel, EndpointSettings

MISSING = [name for name in ("fastapi", "uvicorn", "openai") if find_spec(name) is None]
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(bool(MISSING), reason=f"transformers serve needs {', '.join(MISSING)}"),
]

SCHEMA = {"type": "object", "properties": {"mood": {"type": "string"}}}
ANSWERS = {"How are you?": '{"mood": "good"}', "And you there?": '{"mood": "bad"}'}
STARTING_SECONDS = 120


def request(text):
    return ChatRequest(({"role": "user", "content": text},), SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from data_prep.contract import WarmStart
    from data_prep.tiny_model import Example, warm_start  # brings torch

    tiny = WarmStart(hidden_size=32, layers=1, heads=2, steps=150, batch_size=8)
    examples = [Example(request(q).messages, a) for q, a in ANSWERS.items()] * 8
    return str(warm_start(examples, tiny, tmp_path_factory.mktemp("models")))


def announced_url(process, log):
    """The address that the server says it has; it takes a port that is free."""
    deadline = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"running on (http://[\d.:]+)", log.read_text()):
            return f"{found[1]}/v1"
        time.sleep(0.2)
    pytest.fail(f"transformers serve did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def url(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    command = [Path(sys.executable).with_name("transformers"), "serve", folder]
    options = ["--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
    with log.open("w") as file:
        process = subprocess.Popen([*command, *options], stdout=file, stderr=file)
    try:
        yield announced_url(process, log)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def make(url, folder):
    models = []

    def build(**settings):
        given = {"url": url, "model": folder, "cache_dir": None}
        models.append(EndpointModel(EndpointSettings(**(given | settings))))
        return models[-1]

    yield build
    for model in models:
        model.close()


def test_it_answers(make):
    model = make()
    replies = model.ask(list(map(request, ANSWERS)))
    assert [reply.text for reply in replies] == list(ANSWERS.values())
    assert all(reply.source.model for reply in replies)
    counters = model.counters()
    assert (counters["attempts"], counters["failures"], counters["schema_refused"]) == (2, 0, 0)
    assert counters["answers_without_usage"] == 0
    assert counters["prompt_tokens"] > 0 < counters["completion_tokens"]


def test_an_answer_that_is_cut_off_is_none(make):
    (reply,) = make(parameters={"temperature": 0.0, "max_tokens": 1}).ask([request("How are you?")])
    assert reply.text is None
    assert "cut off" in reply.error.text


def test_what_the_server_refuses_is_none(make):
    (reply,) = make(model="another").ask([request("How are you?")])
    assert reply.text is None
    assert "another: HTTP 400" in reply.error.text
