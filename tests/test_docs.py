"""The documentation names what is there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from equipoise.audit.gate_command import parse_options as gate_options
from equipoise.config import load_config, parse_flags

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_files_that_are_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    for target in targets:
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_errors_that_troubleshooting_explains_are_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith('| "')]
    errors = [error for row in rows for error in re.findall(r'"([^"]+)"', row.split("|")[1])]
    code = "".join(
        path.read_text("utf-8")
        for package in ("environments", "equipoise")
        for path in (ROOT / package).rglob("*.py")
    )
    assert len(errors) > 8
    for error in errors:
        assert re.sub(r"^HTTP \d+", "HTTP {status}", error) in code, error


def test_what_a_sweep_chooses_is_taken_from_the_command_line() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(program:.*?)```", page, re.S)
    sweep = yaml.safe_load(text)
    chosen = {
        key: range_["values"][0] if "values" in range_ else range_["max"]
        for key, range_ in sweep["parameters"].items()
    }
    assert (ROOT / sweep["program"]).is_file() and sweep["command"][-1] == "${args_no_hyphens}"
    words = [*sweep["command"][3:-1], *(f"{key}={value}" for key, value in chosen.items())]
    config = load_config("dharma", parse_flags("x", words)).config
    assert config.grpo.num_generations_per_prompt == 8
    assert config.policy.optimizer.kwargs["lr"] == 0.01


def test_what_the_page_of_the_gate_runs_is_accepted() -> None:
    page = (ROOT / "docs" / "gate.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    steps = [step.get("run", "") for step in yaml.safe_load(text)["jobs"]["gate"]["steps"]]
    wrapped = re.findall(r'--wrap "([^"]+)"', page)
    shown = [line for line in page.splitlines() if line.startswith("equipoise gate")]
    commands = [line for line in (*steps, *wrapped, *shown) if line.startswith("equipoise gate")]
    assert len(commands) == 3
    for command in commands:
        options = gate_options(shlex.split(command)[2:])
        assert (options.before, options.after) == tuple(
            f"results/audits/ship:{side}" for side in ("before", "after")
        )
