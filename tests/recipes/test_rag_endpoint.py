"""The retrieval task with planner and generator behind a server: MedQA's form, plans, a dry run."""

import json

import pytest
from aiohttp import web

from tests.environments.chat.conftest import Server
from tests.environments.rag.conftest import PLAN
from tests.recipes.audits import started

pytestmark = pytest.mark.deep

ANSWER = {"reasoning": "It fits.", "answer": "A"}
OPTIONS = {"A": "fomepizole", "B": "naloxone", "C": "atropine", "D": "digoxin"}


@pytest.fixture
def server():
    """A server that plans where a plan is asked for, else answers; counts both."""
    counts = {"plan": 0, "answer": 0}

    async def reply(_, body):
        planning = "You plan" in body["messages"][0]["content"]
        counts["plan" if planning else "answer"] += 1
        return web.json_response(Server.completion(json.dumps(PLAN if planning else ANSWER)))

    server = Server()
    server.behaviour = reply
    yield server.url, counts
    server.end()


def write_files(folder):
    for split, number in (("train", 60), ("test", 5)):
        rows = [
            {"question": f"{split} {n}?", "options": OPTIONS, "answer_idx": "A" if n % 2 else "B"}
            for n in range(number)
        ]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    passages = [{"id": str(n), "text": f"Passage {n} on train and test."} for n in range(20)]
    (folder / "books.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in passages))


def recipe(folder, url, *arguments):
    settings = f"""\
env: {{rag: {{index: {folder}/index, generator: {{endpoint: &frozen {{url: {url}, model: gemma,
  cache_dir: null}}}}}}}}
equipoise:
  data:
    questions: {{train: {folder}/train.jsonl, test: {folder}/test.jsonl}}
    corpus: {folder}/books.jsonl
    planner: {{endpoint: *frozen}}
    plans: {folder}/plans.jsonl
"""
    (folder / "mine.yaml").write_text(settings)
    place = (f"--output-dir={folder}", f"equipoise.cache_dir={folder}/cache")
    return started("grpo_rag", f"--config={folder / 'mine.yaml'}", *place, *arguments)


def test_plans_are_made_once_and_a_dry_run_takes_them_and_asks_nobody(tmp_path, server):
    url, counts = server
    write_files(tmp_path)
    output = recipe(tmp_path, url, "--planner-only")
    assert "plans: 65 of 65, 0 failed" in output
    assert counts == {"plan": 66, "answer": 0}  # one plan is of the first question, a trial
    recipe(tmp_path, url, "--planner-only")
    assert counts == {"plan": 66, "answer": 0}
    dry = recipe(tmp_path, url, "--dry-run")
    assert counts == {"plan": 66, "answer": 0}
    assert "index: 20 passages" in dry and "test prompts" in dry
