"""The smallest run: every stage once, on this machine."""

import json

import pytest
from huggingface_hub import ModelCard

from tests.command import ROOT, command_line, finished
from tests.recipes.runs import steps_done

pytestmark = pytest.mark.deep


def test_it_takes_every_stage(tmp_path):
    own = (f"--output-dir={tmp_path}", "--run-name=smoke", f"equipoise.cache_dir={tmp_path}/cache")
    said = started("grpo_fairness", "--config=nemo_configs/smoke.yaml", *own, "--no-wandb")
    run = tmp_path / "fairness" / "smoke"
    assert said.split("\n\n")[-1].splitlines() == [  # nothing that so few steps bring is after it
        "finished: every stage ran, with 2 steps of training",
        f"report: {run / 'report.html'}",
        f"model:  {run / 'final_checkpoint'}",
    ]
    assert steps_done(run) == 2
    assert len((run / "reference.jsonl").read_text().splitlines()) < 200
    for stage in ("baseline", "final"):
        assert json.loads((run / stage / "evaluation.json").read_text())["n_rollouts"] < 100
    assert (run / "report.html").is_file()
    assert set(json.loads((run / "modes.json").read_text())["trivial"]["baselines"]) > {"constant"}
    assert (run / "final_checkpoint" / "adapter_model.safetensors").is_file()
    card = ModelCard.load(run / "final_checkpoint" / "README.md")
    assert "rank" in card.text and card.data.library_name == "peft"
    trivial = json.loads((run / "modes.json").read_text())["trivial"]
    assert trivial["trained_greedy"] and trivial["baselines"]["greedy"]["against"]
    its_stages_compare_as_they_did(run, tmp_path)


def its_stages_compare_as_they_did(run, folder):
    """`equipoise compare` finds of a run what the run itself found, and the gate takes it."""
    own = json.loads((run / "comparison.json").read_text())["metrics"]
    started("compare", f"{run / 'baseline'}", f"{run / 'final'}", f"--output-dir={folder / 'c'}")
    content = json.loads((folder / "c" / "compare.json").read_text())
    assert [entry["name"] for entry in content["entries"]] == ["baseline", "final"]
    compared = content["comparisons"]
    assert [pair["metrics"] for pair in compared] == [own]
    sides = (f"{run / 'baseline'}", f"{run / 'final'}")
    started("gate", *sides, f"--output-dir={folder / 'g'}", code=4)  # so few prompts show nothing
    task = json.loads((folder / "g" / "gate.json").read_text())["tasks"]["fairness"]
    assert (task["before"], task["after"]) == sides


def test_the_probe_ends_before_training_and_resume_begins_it(tmp_path):
    own = ("--config=nemo_configs/smoke.yaml", f"--output-dir={tmp_path}", "--no-wandb")
    words = ("pubmedqa", *own, "--run-name=p", f"equipoise.cache_dir={tmp_path}/cache")
    said = started("probe", *words)
    run = tmp_path / "pubmedqa" / "p"
    assert "Best constant reply of" in said
    assert "This run is not finished" in (run / "report.html").read_text()
    assert steps_done(run) == 0
    kept = (run / "probe" / "probe.json").read_bytes()
    started("grpo_pubmedqa", f"--resume={run}")
    assert steps_done(run) == 2
    assert (run / "probe" / "probe.json").read_bytes() == kept
    assert json.loads((run / "modes.json").read_text())["trivial"]["trained"]["reward"]


def test_a_model_that_nobody_can_read_goes_through_every_stage_as_well(tmp_path):
    """No policy has an objective then."""
    own = (f"--output-dir={tmp_path}", f"equipoise.cache_dir={tmp_path}/cache", "--no-wandb")
    least = ("--config=nemo_configs/smoke.yaml", "equipoise.local_model.steps=1")
    said = started("grpo_fairness", *least, *own)
    assert "every stage ran" in said


def started(command, *words, code=0):
    return finished(command_line(command, *words), code, cwd=ROOT, timeout=600)
