"""The smallest run: every stage once, on this machine."""

import json
import subprocess
import sys
from pathlib import Path

from tests.recipes.runs import steps_done

ROOT = Path(__file__).resolve().parents[2]


def test_it_takes_every_stage(tmp_path: Path) -> None:
    command = [sys.executable, "recipes/grpo_fairness.py", "--config=nemo_configs/smoke.yaml"]
    own = (f"--output-dir={tmp_path}", "--run-name=smoke", f"equipoise.cache_dir={tmp_path}/cache")
    done = subprocess.run(
        [*command, *own, "--no-wandb"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "fairness" / "smoke"
    assert steps_done(run) == 2
    for stage in ("baseline", "final"):
        assert json.loads((run / stage / "evaluation.json").read_text())["n_rollouts"] < 100
    assert (run / "report.html").is_file()
    assert (run / "final_checkpoint" / "model.safetensors").is_file()
