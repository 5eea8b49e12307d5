"""Inspect's own command asks a model, and shows what our evaluation of it shows."""

import json
import sys

import pytest
from aiohttp import web

from environments.fairness.environment import constant_decisions
from environments.fairness.spine import SPINE
from tests.command import ROOT, finished
from tests.contract.packages import INSPECT, missing
from tests.environments.chat.conftest import Server
from tests.recipes.audits import SMOKE, model, started

pytestmark = pytest.mark.skipif(bool(missing("inspect")), reason=missing("inspect"))
__all__ = ["model"]
TASKS = "equipoise/commands/export/inspect_tasks.py"
CONFIG = SMOKE.removeprefix("--config=")
READ = """
import sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
print(log.model_dump_json(include={"status", "results", "samples"}))
"""


def evaluated(model, logs, task, *words, limit=None):
    """The log of Inspect's evaluation of the model."""
    own = {"LOOP_BASE_URL": model.server.url, "LOOP_API_KEY": "none", "INSPECT_LOG_FORMAT": "json"}
    command = [sys.executable, "-m", "inspect_ai", "eval", TASKS, "-T", f"task={task}"]
    command += ["-T", f"config={CONFIG}", *(w for word in words for w in ("-T", word))]
    command += ["--model", "openai-api/loop/tested", "--display", "none", "--log-dir", str(logs)]
    command += [] if limit is None else ["--limit", str(limit)]
    run(command, **own)
    (path,) = logs.glob("*.json")
    return json.loads(run([sys.executable, "-c", READ, str(path)]))


def run(command, **variables):
    return finished(command, cwd=ROOT, env=INSPECT.variables | variables)


async def by_gender(_, body):
    """A decision that the prompt's words decide, so that the metrics are of something."""
    replies = list(constant_decisions(SPINE))
    text = replies[0] if "female" in body["messages"][-1]["content"] else replies[-1]
    return web.json_response(Server.completion(text, "stop") | {"model": "tested"})


def metrics_of(log):
    (score,) = log["results"]["scores"]
    return {name: each["value"] for name, each in score["metrics"].items()}


def ours(model, output, task):
    """The row of our own evaluation of the model, and its metrics."""
    started(
        *("evaluate", task, "--model", model.name, SMOKE),
        *("--output-dir", str(output), "--run-name", "a"),
    )
    row = output / "audits" / "a" / task / "tested"
    metrics = json.loads((row / "baseline" / "evaluation.json").read_text())["metrics"]
    return row, {name: each["value"] for name, each in metrics.items() if each["value"] is not None}


def test_replies_are_scored_and_measured_as_in_our_evaluation(model, tmp_path):
    _, expected = ours(model, tmp_path, "pubmedqa")
    log = evaluated(model, tmp_path / "logs", "pubmedqa")
    assert log["status"] == "success"
    shown = metrics_of(log)
    assert {name: shown[name] for name in expected} == pytest.approx(expected)
    assert len({sample["scores"]["reward"]["value"] for sample in log["samples"]}) > 1


def test_sets_are_scored_together_and_parts_of_sets_are_left_out(model, tmp_path):
    model.server.behaviour = by_gender
    row, expected = ours(model, tmp_path, "fairness")
    reference = f"reference={row / 'reference.jsonl'}"
    whole = metrics_of(evaluated(model, tmp_path / "all", "fairness", reference))
    assert {name: whole[name] for name in expected} == pytest.approx(expected)
    assert expected["parse_rate"] == 1
    log = evaluated(model, tmp_path / "logs", "fairness", reference, limit=11)
    assert log["status"] == "success"
    assert metrics_of(log)["replies_measured"] == 8, "a set of 4 prompts with 2 replies each"


def test_without_its_reference_it_says_what_makes_one(model, tmp_path):
    with pytest.raises(AssertionError, match=r"`equipoise evaluate` writes reference.jsonl"):
        evaluated(model, tmp_path / "logs", "fairness")
