"""The command line, the table of the checks, and that nothing is left out or told that must not."""

import json
import re
from pathlib import Path

import pytest

from equipoise.commands.doctor import CHECKS, command, examine
from equipoise.commands.doctor.checks import Result, failure, ok
from equipoise.commands.doctor.command import DoctorOptions, case_of, run
from equipoise.config.compose import tasks
from equipoise.config.words import read_options
from equipoise.files.console import Reporter
from tests.equipoise.commands.doctor.conftest import LARGE
from tests.equipoise.commands.doctor.conftest import LOCAL as SCALE
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "troubleshooting.md"
LOCAL = (*SCALE, "--offline")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to start from, and to keep everything in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHON_DOTENV_DISABLED", "0")
    return tmp_path


def results_of(*words, folder=None):
    names = {"cache_dir": "cache", "output_dir": "runs"} if folder else {}
    own = [f"equipoise.{key}={folder / name}" for key, name in names.items()]
    return examine(case_of(read_options(DoctorOptions, [*words, *own])))


def names(results):
    return list(dict.fromkeys(result.check.name for result in results))


def test_the_page_has_every_check():
    table = PAGE.read_text("utf-8").partition("## The checks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    assert [name for name, _ in rows[1:]] == [check.name for check in CHECKS]
    assert all(check.remedy and "\n" not in check.remedy for check in CHECKS)


@pytest.mark.parametrize("task", tasks())
def test_every_check_has_a_result_of_every_task(task, here):
    results = results_of(task, *LOCAL, folder=here)
    assert names(results) == [check.name for check in CHECKS]
    assert not [result for result in results if result.status == "failure"]
    assert all(result.says for result in results)


def test_without_a_task_the_machine_is_looked_at(here):
    results = results_of("--offline")
    assert names(results) == [check.name for check in CHECKS]


def test_a_configuration_that_is_not_valid(here):
    words = ("fairness", *LOCAL, "grpo.max_num_step=3")
    results = results_of(*words, folder=here)
    assert names(results) == [check.name for check in CHECKS]
    first = results[0]
    assert (first.check.name, first.status) == ("configuration", "failure")
    assert "max_num_steps" in first.says
    assert first.remedy


def test_large_on_this_machine_is_refused_with_what_it_lacks(here, monkeypatch):
    """By what is missing here, whatever else is; NeMo-RL's Python is not asked."""
    monkeypatch.setenv("NEMO_RL_PATH", str(here))
    results = results_of("fairness", *LARGE, "--offline", folder=here)
    (result,) = (result for result in results if result.check.name == "NeMo-RL")
    assert (result.status, "holds no nemo_rl" in result.says) == ("failure", True)
    assert names(results) == [check.name for check in CHECKS]


class TestTold:
    @pytest.fixture(autouse=True)
    def _said(self, monkeypatch):
        hub, disk = (
            next(check for check in CHECKS if check.name == name) for name in ("model", "folders")
        )
        results = [
            Result.of(hub, ok("of https://me:secret-word@host/x")),
            Result.of(disk, failure("full: sekret-value-1", "Free some.")),
        ]
        monkeypatch.setattr(command, "examine", lambda _: results)
        monkeypatch.setenv("MY_API_KEY", "sekret-value-1")

    def test_json(self, capsys):
        with refusal("doctor.not-ready", "folders") as raised:
            run(read_options(DoctorOptions, ["fairness", "--json"]), Reporter())
        assert raised.value.exit_code == 1
        told = json.loads(capsys.readouterr().out)
        assert (told["task"], told["ready"]) == ("fairness", False)
        assert list(told["checks"][1].values()) == ["folders", "failure", "full: ***", "Free some."]
        assert "secret-word" not in json.dumps(told)

    def test_table(self, capsys):
        with refusal("doctor.not-ready"):
            run(read_options(DoctorOptions, ["fairness"]), Reporter())
        printed = capsys.readouterr().out
        assert "1 failure, 0 warning, 0 not checked, 1 ok" in printed
        assert not re.search("sekret|secret-word", printed)
