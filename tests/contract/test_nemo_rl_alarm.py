"""The alarm in NeMo-RL's own loop, of a reward that rises while what is meant falls.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_nemo_rl_alarm.py
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.rehearsal import needs_checkout, needs_extra

pytestmark = [
    pytest.mark.usefixtures("only_ray"),
    needs_checkout,
    needs_extra("tensorboard", "prometheus_client"),
]
#: A task whose environment pays more and measures less as time goes by, whatever is replied.
TASK = """
import random
import time
from pathlib import Path

from data_prep.contract import DataSettings
from data_prep.warm_start import WarmStart
from environments.base import PromptRecord, Score
from environments.contract import Environment
from environments.measurement import Mean, measure_means


def seconds():  # since this file was written
    return time.time() - Path(__file__).stat().st_mtime


class Drift(Environment):
    name = "drift"

    def score(self, rollouts):
        paid = seconds()
        return [Score(paid + ("a" in r.completion) / 100) for r in rollouts]

    def measure(self, rollouts, scores):
        left = Mean([-seconds()] * len(rollouts), better="higher")
        return measure_means([r.prompt_id for r in rollouts], {"left": left})


class PromptSettings(DataSettings):
    num_samples: int = 120


def build_prompts(settings):
    splits = ("train", "train", "validation", "test")
    asks = [({"role": "user", "content": f"Name {i}."},) for i in range(settings.num_samples)]
    return [PromptRecord(f"{i}", "drift", a, f"{i}", splits[i % 4]) for i, a in enumerate(asks)]


LOCAL_MODEL_NOTICE = "A tiny model of nothing."


class LocalModelSettings(WarmStart, frozen=True):
    phrases: bool = False
    vocab_size: int = 300
    steps: int = 60


def imitated_replies(records, settings):
    draw, shown = random.Random(1), [r for r in build_prompts(PromptSettings())]
    train = [record for record in shown if record.split == "train"]
    number = settings.steps * settings.batch_size
    return [(draw.choice(train), draw.choice(["a b", "b c", "c d"])) for _ in range(number)]
"""
YAML = """
equipoise:
  task: drift
  environment: drift.Drift
  data: {module: drift}
  evaluation: {bootstrap_draws: 200, permutations: 100}
"""


def test_the_alarm_of_a_step_is_shown_once_and_goes_by_the_steps_before_a_stop(
    tmp_path: Path,
) -> None:
    (tmp_path / "drift.py").write_text(TASK)
    (tmp_path / "nemo_configs" / "tasks").mkdir(parents=True)
    (tmp_path / "nemo_configs" / "tasks" / "drift.yaml").write_text(YAML)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "equipoise", "train", "drift", "--rehearse"),
            *("--config=nemo_configs/small.yaml", "--iterations=9", "--run-name=run"),
            *(f"equipoise.cache_dir={tmp_path / 'cache'}", "equipoise.max_failure_rate=1.0"),
        ],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=1800,
        check=False,
    )
    output = done.stdout
    assert done.returncode == 0, output
    run = tmp_path / "results" / "drift" / "run"
    with (run / "training_history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == [f"{step}" for step in range(1, 10)]
    assert "stopped after step 4" in output
    assert output.count("warning: Step 8: over 8 steps the reward rose and left did not") == 1
    assert output.index("stopped after step 4") < output.index("warning: Step 8")
    assert "Step 8: over 8 steps the reward rose and left did" in (run / "report.html").read_text()
