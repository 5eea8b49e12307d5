"""What the dry run of a scale on NeMo-RL prints after its table, and how Slurm takes it."""

import io
import math
import os
import re
import shlex
import subprocess

import pytest
from rich.console import Console

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.training_words import parse_flags
from equipoise.terminal.console import Reporter
from equipoise.train.stages.dry_run import dry_run, sbatch_line

JUDGE = "env.dharma.judge={endpoint: {url: 'http://localhost:1/v1', model: m}}"


@pytest.fixture
def printed(tmp_path):
    """What is printed for the dharma task at the medium scale, with more words."""

    def lines(*words):
        scale = ("--config", str(CONFIG_FOLDER / "medium.yaml"), "--engine", "nemo_rl")
        options = parse_flags("", (*scale, "--output-dir", str(tmp_path), *words))
        output = io.StringIO()
        reporter = Reporter(Console(file=output, width=250))
        dry_run(load_config("dharma", options), "x", reporter)
        return output.getvalue()

    return lines


def test_the_job_asks_for_the_most_that_the_run_may_take_and_a_quarter(printed):
    text = printed("grpo.max_num_steps=1000")
    (hours,) = re.findall(r"run time\s*│ ~ \S+ to (\S+) h", text)
    (asked,) = re.findall(r"sbatch .* --time=(\d+):00:00", text)
    assert int(asked) == pytest.approx(math.ceil(1.25 * float(hours)), abs=1)
    assert 4 < int(asked) < 24


def test_without_an_estimate_the_job_takes_the_time_of_its_partition(printed):
    assert "--time" not in printed("equipoise.gpu=null")


def test_the_calls_that_a_step_waits_for_are_counted(printed):
    assert "model calls per step" not in printed()
    (calls,) = re.findall(r"model calls per step\s*│ <= (\S+)", printed(JUDGE))
    assert calls == "1,024"  # one for each of 64 x 16 replies


# --- the line for Slurm ---

RECIPE = "recipes/grpo_fairness.py"
LARGE = "--config=nemo_configs/large.yaml"


@pytest.fixture(scope="module")
def config():
    return load_config("fairness", Options((CONFIG_FOLDER / "large.yaml",))).config


def test_the_nodes_and_the_words_of_the_recipe(config):
    line = sbatch_line(config, [RECIPE, LARGE, "--dry-run", "--ask", "grpo.max_num_steps=3"])
    assert shlex.split(line) == [
        *("sbatch", "--nodes=4", "--gpus-per-node=8", "containers/slurm/grpo.sbatch"),
        *(RECIPE, LARGE, "grpo.max_num_steps=3"),
    ]


@pytest.mark.parametrize("flag", ["--output-dir", "--output_dir", "--output"])
def test_what_the_job_decides_becomes_its_variables(config, flag):
    words = [RECIPE, LARGE, "--run-name", "mine", f"{flag}=/data/my runs", "--dry_run"]
    name, output, *command = shlex.split(sbatch_line(config, words))
    assert name == "EQUIPOISE_RUN_NAME=mine"
    assert output == "EQUIPOISE_OUTPUT=/data/my runs"
    assert command[-2:] == [RECIPE, LARGE]


@pytest.mark.parametrize(
    ("hours", "time"), [(0.4, "1:00:00"), (4.0, "5:00:00"), (7.3, "10:00:00"), (90.0, "24:00:00")]
)
def test_an_estimate_becomes_the_jobs_time_with_a_margin(hours, time, config):
    line = sbatch_line(config, [RECIPE, LARGE], hours)
    assert shlex.split(line)[3] == f"--time={time}"


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
