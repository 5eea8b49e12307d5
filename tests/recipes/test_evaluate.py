"""`equipoise evaluate`: local models, endpoints, checkpoints, ways of asking; kills and outages."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from environments.base import Failure, Score
from environments.fairness.environment import constant_decisions
from environments.fairness.spine import SPINE
from equipoise.files.disk import read_json, write_json
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_scored_rollouts, write_rollouts
from equipoise.run.seals import seal
from tests.command import ROOT
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import SMOKE, model, started
from tests.recipes.runs import interrupted_at

pytestmark = pytest.mark.deep

__all__ = ["model"]

#: Small: 8 prompts, two draws of each.
ASKED, DRAWS = 8, 2
DECISIONS = constant_decisions(SPINE)


def evaluated(folder, *words, task="pubmedqa", code=0):
    own = (f"--output-dir={folder}", "--run-name=a", f"--limit={ASKED}", task)
    fewer = ("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=50")
    cache = f"equipoise.cache_dir={folder / 'cache'}"
    return started("evaluate", SMOKE, *own, *fewer, cache, *words, code=code)


def rows(folder, row):
    lines = (folder / row / "baseline" / "rollouts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_ways_of_asking_an_endpoint_are_rows_of_one_table(tmp_path, model):
    ways = ("--system=careful=Be careful.", "--few-shot=2")
    said = evaluated(tmp_path, f"--model=one={model.name}", *ways)
    task = tmp_path / "audits" / "a" / "pubmedqa"
    assert {row["completion"][-18:] for row in rows(task, "one")} == {"<answer>yes</answer>"[-18:]}
    assert "maybe" in rows(task, "one--careful")[0]["completion"]
    assert len(rows(task, "one")) == ASKED * DRAWS
    compared = read_json(task / "compare.json")
    names = ["one", "one--careful", "one--few-shot-2"]
    assert [entry["name"] for entry in compared["entries"]] == names
    assert [pair["items"] for pair in compared["comparisons"]] == [[ASKED], [ASKED]]
    same = compared["comparisons"][1]["metrics"]["accuracy"]  # it says yes with examples too
    assert (same["difference"], same["verdict"]) == (0.0, "no evidence")
    assert "one--careful" in (task / "compare.html").read_text()
    report = (task / "one" / "report.html").read_text()
    assert (
        "training"
        not in re.sub(
            r"<style.*?</style>|<section aria-labelledby=.provenance.*", "", report, flags=re.DOTALL
        ).lower()
    )
    assert "has not begun" not in report
    assert "one--few-shot-2" in said


def test_an_endpoint_that_dies_loses_nothing(tmp_path, model):
    model.fails_from = 6
    (tmp_path / "m.yaml").write_text(
        json.dumps(
            {
                "url": model.server.url,
                "model": "tested",
                "limits": {"retries": 0, "backoff_seconds": 0.01, "concurrency": 2},
                "budget": {"prompt_price": 1e6, "completion_price": 1e6},
            }
        )
    )
    said = evaluated(tmp_path, f"--model={tmp_path / 'm.yaml'}", code=1)
    assert "out of order" in said
    assert "--resume" in said
    task = tmp_path / "audits" / "a" / "pubmedqa"
    assert not (task / "tested" / "baseline" / "rollouts.jsonl").exists()
    answered = [json.dumps(body, sort_keys=True) for body in model.bodies[1:6]]
    model.fails_from, before = 10**9, len(model.bodies)
    started("evaluate", f"--resume={tmp_path / 'audits' / 'a'}")
    asked = [json.dumps(body, sort_keys=True) for body in model.bodies[before + 1 :]]
    assert not set(asked) & set(answered)
    assert len(asked) == ASKED * DRAWS - len(answered)
    assert len(rows(task, "tested")) == ASKED * DRAWS
    usage = read_json(task / "tested" / "provenance.json")["usage"]["calls"]["tested"]
    assert usage["cost"] == 15 * (len(model.bodies) - before)
    assert f"{usage['cost']:,.2f}" in (task / "tested" / "report.html").read_text()
    finished = len(model.bodies)
    assert "evaluated already" in started("evaluate", f"--resume={tmp_path / 'audits' / 'a'}")
    assert len(model.bodies) == finished


def test_a_spent_budget_stops_and_resume_grants_it_anew(tmp_path, model):
    budget = {"tokens": 15 * 9}
    endpoint = {"url": model.server.url, "model": "tested", "budget": budget}
    (tmp_path / "m.yaml").write_text(json.dumps(endpoint | {"limits": {"concurrency": 1}}))
    said = evaluated(tmp_path, f"--model={tmp_path / 'm.yaml'}", code=1)
    assert "the budget for tested is used up" in said and "--resume" in said
    assert len(model.bodies) == 9
    folder = tmp_path / "audits" / "a"
    started("evaluate", f"--resume={folder}")
    assert len(rows(folder / "pubmedqa", "tested")) == ASKED * DRAWS
    assert len(model.bodies) == 1 + ASKED * DRAWS + 1  # the first question twice


def test_a_killed_audit_asks_no_question_twice(tmp_path, model):
    model.latency = 0.3
    (tmp_path / "m.yaml").write_text(
        json.dumps({"url": model.server.url, "model": "tested", "limits": {"concurrency": 2}})
    )
    folder = tmp_path / "audits" / "a"
    own = (SMOKE, f"--output-dir={tmp_path}", "--run-name=a", f"equipoise.cache_dir={tmp_path}/c")
    asked = ("pubmedqa", f"--model={tmp_path / 'm.yaml'}", f"--limit={ASKED}")
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", "evaluate", *asked, *own],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    while len(model.bodies) < 12 and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    model.latency, before = 0.0, [json.dumps(body) for body in model.bodies]
    started("evaluate", f"--resume={folder}")
    after = [json.dumps(body) for body in model.bodies[len(before) + 1 :]]
    again = set(after) & set(before[1:])
    assert len(again) <= 4  # two were in flight, and two were being checked
    assert len(rows(folder / "pubmedqa", "tested")) == ASKED * DRAWS


def test_what_has_no_score_is_a_failure_and_is_asked_for_again_by_resume(tmp_path, model):
    """A reply that never came is asked for, and one that no judge scored is scored."""
    model.fails_from, model.status = ASKED * DRAWS, 400
    evaluated(tmp_path, f"--model=one={model.name}")
    task = tmp_path / "audits" / "a" / "pubmedqa"
    (failed,) = [row for row in rows(task, "one") if row["error"]]
    assert (failed["value"], failed["error"]["kind"]) == (None, "rejected")
    assert read_json(task / "one" / "baseline" / "evaluation.json")["failures"] == {"rejected": 1}
    model.fails_from, before = sys.maxsize, len(model.bodies)
    resume = f"--resume={task.parent}"
    started("evaluate", resume)
    whole = rows(task, "one")
    assert len(whole) == ASKED * DRAWS and not [row for row in whole if row["error"]]
    assert len(model.bodies) == before + 2  # a question before all others, and the one
    path = task / "one" / "baseline" / "rollouts.jsonl"
    rollouts, scores = read_scored_rollouts(path)
    write_rollouts(path, rollouts, [Score(None, error=Failure("server_error", "x")), *scores[1:]])
    evaluation = path.with_name("evaluation.json")
    write_json(evaluation, read_json(evaluation) | {"n_failed": 1, "failures": {"server_error": 1}})
    seal(RunDirectory(task / "one"), path.parent)
    started("evaluate", resume)
    assert rows(task, "one") == whole and len(model.bodies) == before + 2
    assert read_json(evaluation)["n_failed"] == 0
    assert "evaluated already" in started("evaluate", resume)


def decides_when_told_how(body):
    """A decision where examples say what one is, and else a story."""
    if len(body["messages"]) == 2:
        return "Once there was a patient."
    return DECISIONS[body["seed"] % len(DECISIONS)]


def test_where_no_plain_reply_can_be_read_distances_alone_are_not_measured(tmp_path, model):
    model.says = decides_when_told_how
    ways = ("--few-shot=2", "env.fairness.reference_generations=2")
    said = evaluated(tmp_path, f"--model=one={model.name}", *ways, task="fairness")
    assert "have no reward" in said
    task = tmp_path / "audits" / "a" / "fairness"
    evaluation = read_json(task / FEW / "baseline" / "evaluation.json")
    assert set(evaluation["failures"]) == {"no_comparison"}
    figures = {name: figure["value"] for name, figure in evaluation["metrics"].items()}
    assert (figures["parse_rate"], figures["blind_distance"]) == (1, None)
    assert figures["disparity_ratio"] >= 1
    references = {(task / row / "reference.jsonl").read_bytes() for row in ("one", FEW)}
    assert len(references) == 1


def test_local_models_checkpoints_and_blinding(tmp_path):
    """The tiny model, the same as a checkpoint, and blinded; the reference is the plain one's."""
    keys = ("env.fairness.reference_generations=2", "equipoise.max_failure_rate=1")
    words = ("--model=local", "--blinded", *keys)
    evaluated(tmp_path, *words, task="fairness")
    task = tmp_path / "audits" / "a" / "fairness"
    plain, blinded = rows(task, "local"), rows(task, "local--blinded")
    assert [r["prompt_id"] for r in plain] == [r["prompt_id"] for r in blinded]
    assert sum(a["prompt"] != b["prompt"] for a, b in zip(plain, blinded, strict=True)) > 0
    references = {(task / row / "reference.jsonl").read_bytes() for row in ("local", BLIND)}
    assert len(references) == 1
    assert read_json(task / "local" / "provenance.json")["hashes"]["model"]
    (folder,) = (tmp_path / "cache").glob("tiny-????????????????")
    again = ("--run-name=b", f"--model=first={folder}", f"--model=second={folder}")
    said = evaluated(tmp_path, *again, *words[2:], task="fairness")
    other = tmp_path / "audits" / "b" / "fairness"
    metrics = read_json(other / "compare.json")["entries"][0]["metrics"]
    assert next(iter(metrics)) == "blind_distance"
    every_entry = said.partition("Every entry")[2].partition("second against first")[0]
    assert "not measured: first, second" in every_entry
    assert "Energy distance to the race-blind reference: " in every_entry
    assert [r["completion"] for r in rows(other, "first")] == [r["completion"] for r in plain]
    assert (read_json(other / "compare.json")["comparisons"][0]["metrics"]["parse_rate"]["p"]) == 1


def test_an_audit_that_is_interrupted_again_and_again_loses_no_row(tmp_path):
    root = tmp_path / "audits" / "a"
    resume = f"--resume={root}"
    with interrupted_at("equipoise.run.sampling._sample_batch", call=2):
        said = evaluated(tmp_path, "--model=one=local", "--model=two=local", code=130)
    assert f"--resume {root} continues it" in " ".join(said.split())
    row = root / "pubmedqa" / "one"
    made = {path: path.read_bytes() for path in row.rglob("*") if path.is_file()}
    assert row / "baseline" / "rollouts.jsonl" in made
    for folder in (tmp_path / "cache").glob("tiny-*"):
        shutil.rmtree(folder, ignore_errors=True)
    with interrupted_at("data_prep.tiny_model.imitate"):
        said = started("evaluate", resume, code=130)
    assert f"--resume {root} continues it" in " ".join(said.split())
    assert not (root / "pubmedqa" / "compare.json").exists()
    started("evaluate", resume)
    assert made == {path: path.read_bytes() for path in made}
    names = [entry["name"] for entry in read_json(root / "pubmedqa" / "compare.json")["entries"]]
    assert names == ["one", "two"]


def test_an_adapter_is_a_row_beside_its_base_and_a_run_is_its_checkpoint(tmp_path):
    evaluated(tmp_path, "--model=local", "--limit=4")
    (folder,) = (tmp_path / "cache").glob("tiny-????????????????")
    base = AutoModelForCausalLM.from_pretrained(folder)
    adapted = get_peft_model(base, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    adapted.save_pretrained(tmp_path / "adapter")
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(folder, run / "final_checkpoint")
    seal_run(run)
    words = (f"--model=base={folder}", f"--adapter={tmp_path / 'adapter'}", "--run-name=b")
    evaluated(tmp_path, *words)
    task = tmp_path / "audits" / "b" / "pubmedqa"
    base_rows, adapter_rows = (
        [r["completion"] for r in rows(task, name)] for name in ("base", "adapter")
    )
    assert base_rows != adapter_rows
    evaluated(tmp_path, f"--model=trained={run}", "--run-name=c")
    trained = rows(tmp_path / "audits" / "c" / "pubmedqa", "trained")
    assert [r["completion"] for r in trained] == base_rows
    (run / "manifest.json").unlink()
    words = (f"--model=trained={run}", "--run-name=d", "--limit=4")
    assert "run.unlisted-files" in evaluated(tmp_path, *words, code=1)


BLIND = "local--blinded"
FEW = "one--few-shot-2"


def test_a_dry_run_asks_nothing(tmp_path, model):
    said = evaluated(tmp_path, f"--model=one={model.name}", "--few-shot=1", "--dry-run")
    assert "one--few-shot-1" in said
    assert not model.bodies
    assert not (tmp_path / "audits").exists()


def test_an_endpoint_that_dies_takes_no_other_along(tmp_path, model):
    """Each row has an account of its own, at its endpoint's price."""
    words = []
    for price, name in enumerate(("one", "two", "three"), 1):
        endpoint = {
            "url": model.server.url if name != "two" else "http://127.0.0.1:9/v1",
            "model": name,
            "limits": {"retries": 0, "backoff_seconds": 0.01, "concurrency": 1},
            "budget": {"prompt_price": price * 1e6, "completion_price": price * 1e6},
        }
        (tmp_path / f"{name}.yaml").write_text(json.dumps(endpoint))
        words.append(f"--model={name}={tmp_path / f'{name}.yaml'}")
    said = evaluated(tmp_path, *words, code=1)
    assert "pubmedqa: two is not evaluated" in said and "audit.failed-rows" in said
    task = tmp_path / "audits" / "a" / "pubmedqa"
    for price, name in ((1, "one"), (3, "three")):
        usage = read_json(task / name / "provenance.json")["usage"]
        assert list(usage["calls"]) == [name]
        assert usage["calls"][name]["cost"] == 15 * price * (ASKED * DRAWS + 1)
        assert usage["prompt_tokens"] == 10 * ASKED * DRAWS
    assert not (task / "compare.json").exists()
    audit = read_json(task.parent / "audit.json")
    audit["subjects"][1]["endpoint"]["url"] = model.server.url
    write_json(task.parent / "audit.json", audit)
    before = len(model.bodies)
    said = started("evaluate", f"--resume={task.parent}")
    assert len(model.bodies) == before + ASKED * DRAWS + 1
    assert said.count("evaluated already") == 2
    assert len(read_json(task / "compare.json")["entries"]) == 3


def test_ctrl_c_ends_what_is_asked_and_resume_goes_on(tmp_path, model):
    model.latency = 0.3
    words = (SMOKE, f"--output-dir={tmp_path}", "--run-name=a", f"equipoise.cache_dir={tmp_path}/c")
    words = (*words, f"--model=one={model.name}", f"--limit={ASKED}")
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", "evaluate", "pubmedqa", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while len(model.bodies) < 4 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "--resume" in said and "Traceback" not in said
    model.latency = 0.0
    started("evaluate", f"--resume={tmp_path / 'audits' / 'a'}")
    assert len(rows(tmp_path / "audits" / "a" / "pubmedqa", "one")) == ASKED * DRAWS
