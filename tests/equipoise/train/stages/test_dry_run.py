"""What the dry run of a scale on NeMo-RL prints after its table."""

import io
import math
import re

import pytest
from rich.console import Console

from equipoise.config import load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.training_words import parse_flags
from equipoise.terminal.console import Reporter
from equipoise.train.stages.dry_run import dry_run

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
