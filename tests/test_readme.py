"""The README's example of a task is complete, and no longer than it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 30


def example() -> dict[str, str]:
    """The files of the example: path -> content."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(# environments/.*?)```", text, re.DOTALL)
    assert block is not None
    parts = re.split(r"^# (\S+\.(?:py|yaml))\n", block[1], flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with the example's files in their places."""
    for folder in ("environments", "data_prep", "equipoise", "nemo_configs", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__py*"))
    for name, content in example().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_the_example_is_short() -> None:
    lines = [line for content in example().values() for line in content.splitlines()]
    assert len([line for line in lines if line.strip()]) <= MAX_LINES


def test_the_example_trains(project: Path) -> None:
    words = ("Well, as to this case there is a lot that one could say.", "Fine.")
    examples = [
        Example(({"role": "user", "content": f"Describe case {i}."},), words[i % 2])
        for i in range(600)
    ]
    model = warm_start(examples, WarmStart(steps=40, batch_size=16), project / "cache")
    command = [
        sys.executable,
        "recipes/grpo_brief.py",
        f"--model-name={model}",
        "--config=nemo_configs/local.yaml",
        "--iterations=3",
        "grpo.num_prompts_per_step=8",
        "grpo.num_generations_per_prompt=4",
    ]
    environment = os.environ | {"PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "brief_rate" in result.stdout
    assert (project / "results" / "brief" / "local" / "report.html").exists()
