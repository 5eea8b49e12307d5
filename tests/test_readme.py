"""The README's first command works anywhere; the example of a task is complete and short.

A report of the example is in its own words, with nothing in Equipoise that knows of it.
"""

import html
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import Rollout
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.intervals import StatisticsSettings

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 25


def example():
    """The files of the example: path -> content."""
    text = (ROOT / "docs" / "own-task.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(# brief.*?)```", text, re.DOTALL)
    assert block is not None
    parts = re.split(r"^# (\S+\.(?:py|yaml))\n", block[1], flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_a_share_that_is_none_of_the_examples_prompts_has_an_upper_bound():
    names: dict[str, Any] = {}
    exec(example()["brief.py"], names)
    brief = names["Brief"](names["Brief"].Settings(limit=1))
    rollouts = [Rollout(f"{n}", f"{n}", "test", "", "too long", {}) for n in range(8)]
    measurement = brief.measure(rollouts, brief.score(rollouts))
    rate = headline_figures(measurement, StatisticsSettings())["brief_rate"]
    assert (rate.value, rate.low) == (0, 0)
    assert rate.high is not None and rate.high > 0.2  # the exact bound is .37, Wilson's .32


def names_for_the_report():
    """The lines that name the example's metric."""
    text = (ROOT / "docs" / "own-task.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(from environments.presentation.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1]


@pytest.fixture
def project(tmp_path):
    """A folder with the example's files, and one whose name is that of a folder of ours."""
    (tmp_path / "environments").mkdir()
    for name, content in example().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    with (tmp_path / "brief.py").open("a") as file:
        file.write(names_for_the_report())
    return tmp_path


def test_the_example_is_short():
    lines = [line for content in example().values() for line in content.splitlines()]
    assert len([line for line in lines if line.strip()]) <= MAX_LINES


@pytest.mark.deep
def test_the_example_trains(project):
    words = ("Well, as to this case there is a lot that one could say.", "Fine.")
    examples = [
        Example(({"role": "user", "content": f"Describe case {i}."},), words[i % 2])
        for i in range(600)
    ]
    model = warm_start(examples, WarmStart(steps=40, batch_size=16), project / "cache")
    command = [
        Path(sys.executable).with_name("equipoise"),
        "train",
        "brief",
        f"--model-name={model}",
        "--config=nemo_configs/local.yaml",
        "--run-name=mine",
        "--iterations=3",
        "grpo.num_prompts_per_step=8",
        "grpo.num_generations_per_prompt=4",
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Share of brief answers" in result.stdout
    report = (project / "results" / "brief" / "mine" / "report.html").read_text()
    shown = " ".join(html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", report)).split())
    assert "Brief answers: mine" in shown
    assert re.search(r"[Tt]he share of brief answers (rose|fell|changed|is) ", shown)
    assert "Share of brief answers those within the limit" in shown
    run = Path("results") / "brief" / "mine"
    compare = [command[0], "compare", f"{run}/baseline", f"{run}/final"]
    for own, code in (((), 2), (("--own-code", "brief"), 0)):
        done = subprocess.run([*compare, *own], cwd=project, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("--own-code brief" in done.stderr) is (code == 2)


class TestTheFirstCommand:
    """It needs a Python and nothing that a system's own Python forbids."""

    @staticmethod
    def lines():
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        start = re.search(r"## Start\n.*?```bash\n(.*?)```", text, re.DOTALL)
        assert start is not None
        return start[1].splitlines()

    def test_starts_a_recipe_with_a_configuration_that_exist(self):
        words = self.lines()[1].split()
        assert words[:2] == ["uv", "run"]
        assert all((ROOT / word).is_file() for word in words if "/" in word)

    @pytest.mark.deep
    def test_installs_where_python_is_externally_managed(self, tmp_path):
        """Into a folder of its own: pip refuses the system's one, and would not be asked."""
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python3").symlink_to(sys._base_executable)
        write_wheel(tmp_path / "uv-1.0-py3-none-any.whl")
        environment = {
            "HOME": str(tmp_path),
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path),
            "PIP_REQUIRE_VIRTUALENV": "1",  # as strict as a system that manages its own packages
        }
        script = f"{self.lines()[0]}\nuv run"
        result = subprocess.run(
            ["bash", "-ec", script], env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines()[-1] == "uv of the test"


def write_wheel(path):
    """A package with a command `uv`, for a test has no network."""
    files = {
        "uv_of_the_test.py": "def main():\n    print('uv of the test')\n",
        "uv-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: uv\nVersion: 1.0\n",
        "uv-1.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        "uv-1.0.dist-info/entry_points.txt": "[console_scripts]\nuv = uv_of_the_test:main\n",
        "uv-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
