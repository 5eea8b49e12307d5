"""--resume after what goes wrong in practice: suspended, started twice, damaged, asked for more."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.equipoise.train.test_start import recipe
from tests.recipes.runs import Runs, ended, history, interrupted_at, steps_done, wait_for

pytestmark = pytest.mark.deep

SMALL = (
    "--num-samples=96",
    "--iterations=4",
    "--learning-rate=3e-3",
    "--no-wandb",
    "grpo.num_prompts_per_step=8",
    "grpo.num_generations_per_prompt=4",
    "checkpointing.save_period=2",
    "equipoise.local_model.steps=150",
    "equipoise.evaluation.generations=2",
    "equipoise.evaluation.bootstrap_draws=100",
    "equipoise.evaluation.permutations=50",
    "env.fairness.reference_generations=2",
    "equipoise.max_failure_rate=1.0",
)
WEIGHTS = "final_checkpoint/adapter_model.safetensors"


def assert_same_result(run: Path, other: Path) -> None:
    assert history(run) == history(other)
    stages = [f"{stage}/rollouts.jsonl" for stage in ("baseline", "final")]
    kept = "training/rollouts.jsonl"
    for file in (WEIGHTS, "reference.jsonl", "comparison.json", kept, *stages):
        assert (run / file).read_bytes() == (other / file).read_bytes(), file


def flip(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("results"), SMALL)


@pytest.fixture(scope="module")
def whole(runs: Runs) -> Path:
    ended(runs.new("whole"))
    return runs.run("whole")


def copied(runs: Runs, whole: Path, name: str) -> Path:
    shutil.copytree(whole, runs.run(name))
    return runs.run(name)


def test_a_suspended_run_is_not_resumed_beside_and_ends_as_if_nothing_was(
    runs: Runs, whole: Path
) -> None:
    run = runs.run("suspended")
    process = runs.new("suspended")
    wait_for(lambda: steps_done(run) >= 2, process)
    process.send_signal(signal.SIGSTOP)
    output = ended(runs.resume("suspended"), code=2)
    assert f"in use by process {process.pid} on " in output
    assert f"kill {process.pid}; kill -CONT {process.pid}" in output
    process.send_signal(signal.SIGCONT)
    ended(process)
    assert_same_result(run, whole)


def test_of_two_resumptions_at_once_one_runs(runs: Runs, whole: Path) -> None:
    run = runs.run("twice")
    process = runs.new("twice")
    wait_for(lambda: steps_done(run) >= 3, process)
    process.kill()
    process.communicate()
    pair = [runs.resume("twice") for _ in range(2)]
    outputs = [each.communicate(timeout=600)[0] for each in pair]
    assert sorted(each.returncode for each in pair) == [0, 2], outputs
    assert "in use by process" in "".join(outputs)
    assert_same_result(run, whole)


def test_what_is_damaged_is_named_and_made_again_to_the_bit(runs: Runs, whole: Path) -> None:
    run = copied(runs, whole, "damaged")
    for part in ("final", "final_checkpoint"):
        shutil.rmtree(run / part)
    (run / "checkpoints" / "checkpoint-4" / "optimizer.pt").unlink()
    (run / "checkpoints" / "checkpoint-abc").mkdir()
    (run / "checkpoints" / "checkpoint-9").symlink_to(run / "nowhere")
    (run / "training_history.csv").write_text("step,reward\n1,9\n")
    flip(run / "baseline" / "rollouts.jsonl")
    flip(run / "reference.jsonl")
    for cached in (runs.folder / "cache").glob("reference-*.jsonl"):
        flip(cached)
    output = ended(runs.resume("damaged"))
    assert "checkpoint-4 is damaged: optimizer.pt is missing; step 2 is taken instead" in output
    assert "baseline/rollouts.jsonl was changed since it was written" in output
    assert "reference.jsonl was changed since it was written" in output
    assert_same_result(run, whole)


@pytest.fixture(scope="module")
def longer(runs: Runs, whole: Path) -> Path:
    """The finished run with two steps more."""
    run = copied(runs, whole, "longer")
    refused = ended(runs.resume("longer", "--iterations=6", "env.fairness.reward=distance"), code=2)
    assert "reward: the run has distribution, asked for is distance" in refused
    output = ended(runs.resume("longer", "--iterations=6"))
    assert "from step 4 to 6" in output
    assert "learning rate 0.001 at first, 0.0005 at last" in output
    return run


def test_a_finished_run_trains_on_by_the_schedule_of_its_new_length(
    whole: Path, longer: Path
) -> None:
    run, old = longer, history(whole)
    rows = history(run)
    assert rows[:4] == old
    assert [float(row["learning_rate"]) for row in rows[4:]] == pytest.approx([1e-3, 5e-4])
    kept = run / "earlier" / "1"
    assert (kept / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert (run / WEIGHTS).read_bytes() != (whole / WEIGHTS).read_bytes()
    for file in ("final/rollouts.jsonl", "comparison.json"):
        assert (run / file).read_text() != (kept / file).read_text(), file
    assert "max_num_steps: 6" in (run / "config.yaml").read_text()
    resumed = json.loads((run / "provenance.json").read_text())["resumed"]
    assert resumed[0]["changes"]["grpo.max_num_steps"] == {"before": 4, "after": 6}


def contents(run: Path) -> set[bytes]:
    return {path.read_bytes() for path in run.rglob("*") if path.is_file()}


LOG = "equipoise.log"
MODEL_IS_MADE = "data_prep.tiny_model.imitate"
STEP_IS_SCORED = "equipoise.train.local.reward.score_within_budget"


@pytest.mark.parametrize(
    ("function", "presses", "steps"),
    [(MODEL_IS_MADE, 1, 4), (STEP_IS_SCORED, 1, 5), (STEP_IS_SCORED, 2, 4)],
    ids=["the model is made", "the first step", "the first step, twice"],
)
def test_a_finished_run_whose_resumption_is_interrupted_loses_nothing(
    function: str, presses: int, steps: int, runs: Runs, whole: Path, longer: Path
) -> None:
    run = copied(runs, whole, f"interrupted-{function}-{presses}")
    cache = runs.folder / "cache" if function == STEP_IS_SCORED else runs.folder / f"{run.name}-c"
    with interrupted_at(function, presses=presses):
        stopped = recipe(f"--resume={run}", "--iterations=6", f"equipoise.cache_dir={cache}")
    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    said = " ".join(stopped.stderr.split())
    assert f"--resume {run} continues it" in said and "Traceback" not in said
    assert f"the result before these steps is still in {run}, as it was" in said
    assert (run / LOG).read_bytes().startswith((whole / LOG).read_bytes())
    assert not (whole / "checkpoints" / "README.md").exists()  # TRL's card differs by process
    kept = contents(run)
    for path in whole.rglob("*"):
        if path.is_file() and path.name not in ("provenance.json", LOG):
            assert path.read_bytes() in kept, path.relative_to(whole)
    assert (run / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert steps_done(run) >= steps
    again = recipe(f"--resume={run}", f"equipoise.cache_dir={runs.folder / 'cache'}")
    assert again.returncode == 0, again.stdout + again.stderr
    assert (run / "earlier" / "1" / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert_same_result(run, longer)
