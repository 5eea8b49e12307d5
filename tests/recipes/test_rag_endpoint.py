"""The retrieval task with planner and generator behind a server: MedQA's form, plans, a dry run."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[2]
PLAN = {
    "discriminating_features": ["anion gap"],
    "best_guess": "ethylene glycol",
    "reasoning": "It fits.",
    "confirming_evidence": "Crystals.",
    "alternative_if_wrong": "Methanol.",
}
ANSWER = {"reasoning": "It fits.", "answer": "A"}
OPTIONS = {"A": "fomepizole", "B": "naloxone", "C": "atropine", "D": "digoxin"}


class Handler(BaseHTTPRequestHandler):
    """Plans where a plan is asked for, else answers; counts both."""

    counts: dict[str, int]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        planning = "You plan" in body["messages"][0]["content"]
        self.counts["plan" if planning else "answer"] += 1
        message = {"role": "assistant", "content": json.dumps(PLAN if planning else ANSWER)}
        reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        data = json.dumps(reply | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # a connection that finds no room is tried again after a second


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, int]]]:
    counts = {"plan": 0, "answer": 0}
    handler = type("Counted", (Handler,), {"counts": counts})
    found = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}/v1", counts
    found.shutdown()
    thread.join()
    found.server_close()


def write_files(folder: Path) -> None:
    for split, number in (("train", 60), ("test", 5)):
        rows = [
            {"question": f"{split} {n}?", "options": OPTIONS, "answer_idx": "A" if n % 2 else "B"}
            for n in range(number)
        ]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    passages = [{"id": str(n), "text": f"Passage {n} on train and test."} for n in range(20)]
    (folder / "books.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in passages))


def recipe(folder: Path, url: str, *arguments: str) -> str:
    settings = f"""\
env: {{rag: {{index: {folder}/index, generator: {{endpoint: &frozen {{url: {url}, model: gemma,
  cache_dir: null}}}}}}}}
equipoise:
  data:
    questions: {{train: {folder}/train.jsonl, test: {folder}/test.jsonl}}
    corpus: {folder}/books.jsonl
    known_share: 0.5
    planner: {{endpoint: *frozen}}
    plans: {folder}/plans.jsonl
"""
    (folder / "mine.yaml").write_text(settings)
    command = [sys.executable, "recipes/grpo_rag.py", "--config", str(folder / "mine.yaml")]
    command += [f"--output-dir={folder}", f"equipoise.cache_dir={folder}/cache", *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plans_are_made_once_and_a_dry_run_takes_them_and_asks_nobody(
    tmp_path: Path, server: tuple[str, dict[str, int]]
) -> None:
    url, counts = server
    write_files(tmp_path)
    output = recipe(tmp_path, url, "--planner-only")
    assert "plans: 65 of 65, 0 failed" in output
    # The server says A to everything, which is right for every second question.
    assert "30 of 60 training questions are answered without retrieval" in output
    assert counts == {"plan": 66, "answer": 60}  # one plan is of the first question, a trial
    recipe(tmp_path, url, "--planner-only")
    assert counts == {"plan": 66, "answer": 60}
    dry = recipe(tmp_path, url, "--dry-run")
    assert counts == {"plan": 66, "answer": 60}
    assert "50 prompts" in dry  # 30 + 15 to train on, 5 to test
    assert "the generator is not asked in a dry run" in dry
