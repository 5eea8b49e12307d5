"""A dry run on NeMo-RL prints the sbatch command of the same run."""

import re
import shlex

import pytest

from equipoise.commands.start import sbatch_line
from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER

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


@pytest.mark.parametrize("flag", ["--output-dir", "--output_dir"])
def test_what_the_job_decides_becomes_its_variables(config, flag):
    words = [RECIPE, LARGE, "--run-name", "mine", f"{flag}=/data/my runs", "--dry_run"]
    name, output, *command = shlex.split(sbatch_line(config, words))
    assert name == "EQUIPOISE_RUN_NAME=mine"
    assert output == "EQUIPOISE_OUTPUT=/data/my runs"
    assert command[-2:] == [RECIPE, LARGE]


def test_the_script_and_its_page_ask_for_the_same_time(config):
    (time,) = [word for word in shlex.split(sbatch_line(config, [RECIPE])) if "--time" in word]
    for path in ("containers/slurm/grpo.sbatch", "docs/cluster.md"):
        text = (CONFIG_FOLDER.parent / path).read_text("utf-8")
        assert set(re.findall(r"--time=\d\S*", text)) == {time}
