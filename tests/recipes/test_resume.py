"""--resume after what goes wrong in practice: suspended, started twice, damaged, asked for more."""

import json
import shutil
import signal

import pytest

from tests.equipoise.commands.test_start import recipe
from tests.recipes.runs import (
    SMALL,
    Runs,
    assert_same_files,
    ended,
    history,
    interrupted_at,
    steps_done,
    wait_for,
)

pytestmark = pytest.mark.deep

WORDS = (
    *(*SMALL, "--no-wandb", "--iterations=4", "checkpointing.save_period=2"),
    *("equipoise.evaluation.bootstrap_draws=100", "equipoise.evaluation.permutations=50"),
)
WEIGHTS = "final_checkpoint/adapter_model.safetensors"


def assert_same_result(run, other):
    stored = ("reference.jsonl", "training/rollouts.jsonl", "baseline/rollouts.jsonl")
    assert_same_files(run, other, WEIGHTS, *stored)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("results"), WORDS)


@pytest.fixture(scope="module")
def whole(runs):
    ended(runs.new("whole"))
    return runs.run("whole")


def copied(runs, whole, name):
    shutil.copytree(whole, runs.run(name))
    return runs.run(name)


def test_a_suspended_run_is_not_resumed_beside_and_ends_as_if_nothing_was(runs, whole):
    run = runs.run("suspended")
    process = runs.new("suspended")
    wait_for(lambda: steps_done(run) >= 2, process)
    process.send_signal(signal.SIGSTOP)
    output = ended(runs.resume("suspended"), code=2)
    assert "error [run.in-use]" in output
    process.send_signal(signal.SIGCONT)
    ended(process)
    assert_same_result(run, whole)


def test_of_two_resumptions_at_once_one_runs(runs, whole):
    run = runs.run("twice")
    process = runs.new("twice")
    wait_for(lambda: steps_done(run) >= 3, process)
    process.kill()
    process.communicate()
    pair = [runs.resume("twice") for _ in range(2)]
    outputs = [each.communicate(timeout=600)[0] for each in pair]
    assert sorted(each.returncode for each in pair) == [0, 2], outputs
    assert "error [run.in-use]" in "".join(outputs)
    assert_same_result(run, whole)


def test_a_finished_run_trains_on_and_a_kill_while_it_grows_changes_nothing(
    runs, whole, monkeypatch
):
    refused = ended(runs.resume("whole", "--iterations=6", "env.fairness.reward=distance"), code=2)
    assert "takes no env.fairness.reward" in refused
    run, other = (copied(runs, whole, name) for name in ("longer", "killed"))
    output = ended(runs.resume("longer", "--iterations=6"))
    assert "from step 4 to 6" in output
    rows = history(run)
    assert rows[:4] == history(whole)
    assert [float(row["learning_rate"]) for row in rows[4:]] == pytest.approx([1.38e-3, 1.65e-3])
    assert (run / WEIGHTS).read_bytes() != (whole / WEIGHTS).read_bytes()
    (grown,) = json.loads((run / "provenance.json").read_text())["grown"]
    assert (grown["from_step"], grown["steps_before"], grown["steps"]) == (4, 4, 6)
    with interrupted_at("equipoise.train.local.score_within_budget", presses=2):
        stopped = recipe(f"--resume={other}", "--iterations=6")
    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    ended(runs.resume("killed"))
    assert_same_result(other, run)
