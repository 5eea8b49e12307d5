"""What the dry run of a scale on NeMo-RL prints after its table, and how Slurm takes it."""

import os
import shlex
import subprocess

import pytest

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.train.stages.dry_run import sbatch_line

# --- the line for Slurm ---

RECIPE = "recipes/grpo_fairness.py"
LARGE = "--config=nemo_configs/large.yaml"


@pytest.fixture(scope="module")
def config():
    return load_config("fairness", Options((CONFIG_FOLDER / "large.yaml",))).config


def test_the_nodes_and_the_words_of_the_recipe(config):
    line = sbatch_line(config, [RECIPE, LARGE, "--dry-run", "--ask", "grpo.max_num_steps=3"])
    assert shlex.split(line) == [
        *("sbatch", "--nodes=4", "--gpus-per-node=8", "--time=4:00:00"),
        "containers/slurm/grpo.sbatch",
        *(RECIPE, LARGE, "grpo.max_num_steps=3"),
    ]


@pytest.mark.parametrize("flag", ["--output-dir", "--output_dir", "--output"])
def test_what_the_job_decides_becomes_its_variables(config, flag):
    words = [RECIPE, LARGE, "--run-name", "mine", f"{flag}=/data/my runs", "--dry_run"]
    name, output, *command = shlex.split(sbatch_line(config, words))
    assert name == "EQUIPOISE_RUN_NAME=mine"
    assert output == "EQUIPOISE_OUTPUT=/data/my runs"
    assert command[-2:] == [RECIPE, LARGE]


def test_the_job_outside_slurm_says_how_it_is_started(tmp_path):
    script = CONFIG_FOLDER.parent / "containers" / "slurm" / "grpo.sbatch"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    result = subprocess.run(
        ["bash", str(script), RECIPE],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: this is a job for Slurm, and here is none: sbatch ")
    assert not list(tmp_path.iterdir())


def test_a_part_that_was_kept_before_training_is_progress(tmp_path):
    """A job that is queued again ends where a start has kept nothing: see grpo.sbatch."""
    script = (CONFIG_FOLDER.parent / "containers" / "slurm" / "grpo.sbatch").read_text()
    progress = script[script.index("progress() {") : script.index("# Training was stopped before")]

    def state():
        lines = f"run_directory() {{ echo {shlex.quote(str(tmp_path))}; }}\n{progress}\nprogress"
        return subprocess.run(
            ["bash", "-c", lines], capture_output=True, text=True, check=True
        ).stdout

    part = tmp_path / "parts" / "reference" / "part-00007.jsonl"
    part.parent.mkdir(parents=True)
    (tmp_path / "equipoise.log").write_text("started\n")
    before = state()
    part.write_text("{}\n")
    assert state() == before  # without its seal it does not count
    part.with_name(f"{part.name}.complete").write_text("{}")
    assert state() != before
