"""The workflow that gates a model runs its lines as they stand, here with stubs."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.commands.main import VERBS, options_of
from equipoise.config.words import read_options

WORKFLOW = Path(__file__).parents[1] / ".github" / "workflows" / "gate.yml"
#: Writes down each word it is called with, and what the real command leaves.
STUB = """#!/bin/sh
echo "$(basename "$0")" >> "$CALLS"
for word in "$@"; do echo "  $word" >> "$CALLS"; done
case "$*" in
  gate*--plan) mkdir -p results/gate && echo {} > results/gate/plan.json ;;
  gate*) echo "## Gate" > gate.md; echo "<testsuites/>" > gate.xml; exit "$VERDICT" ;;
esac
"""


@pytest.mark.parametrize("verdict", [0, 3])
def test_each_line_runs_and_the_summary_is_written_whatever_the_verdict(
    tmp_path: Path, verdict: int
) -> None:
    job: Any = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["gate"]
    inputs = {"before": "my model", "after": "$(touch hacked)", "task": "rag"}
    stubs, work = tmp_path / "stubs", tmp_path / "work"
    for folder in (stubs, work):
        folder.mkdir()
    for name in ("equipoise", "uv", "python"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    variables = dict(job["env"])
    for name, value in inputs.items():
        assert variables[name.upper()] == f"${{{{ inputs.{name} }}}}"
        variables[name.upper()] = value
    files = {name: str(tmp_path / name) for name in ("CALLS", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    variables |= files | {"PATH": f"{stubs}:{os.environ['PATH']}", "VERDICT": str(verdict)}
    failed = False
    for step in job["steps"]:
        if "run" not in step or (failed and step.get("if") != "always()"):
            continue
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=work, env=os.environ | variables, check=False)
        failed = failed or done.returncode != 0
    assert failed == (verdict != 0)
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == "## Gate\n"
    assert (tmp_path / "GITHUB_PATH").read_text() == f"{work}/.venv/bin\n"
    assert not (work / "hacked").exists()
    upload = job["steps"][-1]
    assert upload["if"] == "always()"
    assert all((work / path).exists() for path in upload["with"]["path"].split())
    calls = _calls((tmp_path / "CALLS").read_text())
    assert [call[0] for call in calls] == ["python", "uv", "uv", *["equipoise"] * 3]
    plan, evaluate, gate = (_options(call[1:]) for call in calls[3:])
    assert (
        plan.plan
        and plan.before == "rag"
        and evaluate.model == ("before=my model", "after=$(touch hacked)")
    )
    evaluate.check()
    root = f"results/audits/{evaluate.run_name}"
    assert (gate.before, gate.after) == (f"{root}:before", f"{root}:after")


def _calls(text: str) -> list[list[str]]:
    calls: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            calls[-1].append(line[2:])
        else:
            calls.append([line])
    return calls


def _options(words: list[str]) -> Any:
    assert words[0] in VERBS
    return read_options(options_of(words[0]), words[1:])
