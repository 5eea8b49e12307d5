"""The dharma task with its judge behind a server that fails: what is lost, what is kept."""

import hashlib
import json
from collections import Counter

import pytest
from aiohttp import web

from tests.command import run_command
from tests.environments.chat.conftest import Server
from tests.environments.dharma.samples import PERFECT

pytestmark = pytest.mark.deep

KEY = "key-that-must-not-be-written"
SMALL = (
    "--config=nemo_configs/local.yaml",
    "--no-wandb",
    "--num-samples=160",
    "--iterations=3",
    "grpo.num_prompts_per_step=8",
    "grpo.num_generations_per_prompt=4",
    "equipoise.local_model.steps=60",
    "equipoise.evaluation.generations=4",
    "equipoise.evaluation.bootstrap_draws=200",
    "equipoise.failure_window=1",
)


class Judge:
    """Rates by a hash of what it is asked, and fails for a share of the requests, always."""

    def __init__(self):
        self.server = Server()
        self.server.behaviour = self.rate
        self.failing = 0.0
        self.status = 200
        self.answered: Counter[str] = Counter()

    async def rate(self, request, body):
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        if self.status != 200:
            return web.Response(status=self.status, text="no such key")
        if "What helps with a cold?" in Server.asked(body):
            return web.json_response(Server.completion(json.dumps(PERFECT)))  # the first question
        digest = hashlib.sha256(json.dumps(body["messages"]).encode())
        if digest.digest()[0] < 256 * self.failing:
            return web.Response(status=500)
        self.answered[digest.hexdigest()] += 1
        ratings = PERFECT | {"clarity": digest.digest()[1] / 255}
        return web.json_response(Server.completion(json.dumps(ratings)))


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    running = Judge()
    yield running
    running.server.end()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The folder of the local model, which is the same in every run here."""
    return tmp_path_factory.mktemp("cache")


def train(folder, cache, judge, *flags, **budget):
    endpoint = {
        "url": judge.server.url,
        "model": "judge",
        "api_key_env": "JUDGE_KEY",
        "cache_dir": str(folder / "answers"),
        "limits": {"retries": 1, "backoff_seconds": 0.01},
        "budget": budget,
    }
    settings = {"env": {"dharma": {"judge": {"endpoint": endpoint}}}}
    (folder / "judge.yaml").write_text(json.dumps(settings))
    place = (f"--output-dir={folder}", "--run-name=run", f"equipoise.cache_dir={cache}")
    return run_command("grpo_dharma", *SMALL, f"--config={folder / 'judge.yaml'}", *place, *flags)


def rollouts(run, stage):
    lines = (run / stage / "rollouts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_few_failures_are_no_numbers_and_the_run_goes_on(tmp_path, cache, judge):
    judge.failing = 0.05
    # Of 40 replies of a trivial baseline more than a tenth may be among the failing ones.
    done = train(tmp_path, cache, judge, "equipoise.max_failure_rate=0.25")
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "dharma" / "run"
    failed = [reply for reply in rollouts(run, "baseline") if reply["error"]]
    assert failed
    assert {reply["value"] for reply in failed} == {None}
    assert {reply["error"]["kind"] for reply in failed} == {"server_error"}
    assert all("500" in reply["error"]["text"] for reply in failed)
    evaluation = json.loads((run / "baseline" / "evaluation.json").read_text())
    assert evaluation["n_failed"] == len(failed)
    assert evaluation["failures"] == {"server_error": len(failed)}
    history = [json.loads(row) for row in (run / "training_history.jsonl").open()]
    by_kind = [row.get("failures/server_error", 0) for row in history]
    assert sum(by_kind) == sum(row["failures"] for row in history) > 0
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in written if KEY.encode() in file.read_bytes()]


def test_an_outage_stops_the_run_and_nothing_is_asked_twice_after_it(tmp_path, cache, judge):
    judge.failing = 0.4
    done = train(tmp_path, cache, judge)
    run = tmp_path / "dharma" / "run"
    assert done.returncode == 1
    assert "of the baseline evaluation could not be scored" in done.stderr
    assert not (run / "baseline" / "evaluation.json").exists()
    assert judge.answered
    generated = (run / "baseline" / "generations.jsonl").read_text().splitlines()
    judge.failing = 0.0
    done = run_command("grpo_dharma", f"--resume={run}")
    assert done.returncode == 0, done.stdout + done.stderr
    scored = rollouts(run, "baseline")
    assert [
        found | json.loads(line) for found, line in zip(scored, generated, strict=True)
    ] == scored
    assert "scoring what was generated before" in done.stdout
    assert all(found["error"] is None for found in rollouts(run, "baseline"))
    assert set(judge.answered.values()) == {1}


def test_a_judge_that_takes_no_question_is_told_before_anything_is_generated(
    tmp_path, cache, judge
):
    judge.status = 401
    for flags in ((), ("--dry-run", "--ask")):
        done = train(tmp_path, cache, judge, *flags)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "does not answer: judge: judge: HTTP 401: no such key" in done.stderr
        assert "docs/judges.md" in done.stderr
    assert not (tmp_path / "dharma" / "run").exists()
    judge.status = 200
    assert "what gives reward answers" in train(tmp_path, cache, judge, *flags).stdout


def test_a_spent_budget_stops_training_with_a_checkpoint(tmp_path, cache, judge):
    # A call takes 15 tokens; the first question and the baseline's rollouts, 156, fit in, 96 of
    # training do not.
    done = train(tmp_path, cache, judge, "equipoise.probe.prompts=0", tokens=15 * 200)
    assert done.returncode == 1
    assert "budget" in done.stderr
    run = tmp_path / "dharma" / "run"
    assert (run / "baseline" / "evaluation.json").exists()
    assert list((run / "checkpoints").iterdir())
    assert run_command("grpo_dharma", f"--resume={run}").returncode == 0
