"""equipoise.log of a run: what was said, with the times, and nothing that a reader must fear."""

import io
import logging
import re
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from equipoise.commands.log import kept_log
from equipoise.files.console import Reporter
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) [\w.]+: .*")


@pytest.fixture(autouse=True)
def warnings_as_before():
    yield
    logging.captureWarnings(False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "equipoise.log"


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def reporter(out):
    return Reporter(Console(file=out, force_terminal=True, width=100, highlight=False))


def messages(path):
    return [line.split(": ", 1)[1] for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_the_terminal_shows_is_kept_with_its_time(path, reporter, out):
    with kept_log(reporter) as keep_in:
        reporter.say("before the file is known")
        keep_in(path)
        reporter.heading("a stage")
        reporter.warn("look out")
        with reporter.progress("baseline", total=10) as advance:
            advance(5)
            reporter.say("a line above the bar")
            advance(10)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    said = messages(path)
    shown = ("before the file is known", "A STAGE", "warning: look out", "a line above the bar")
    assert [said.count(line) for line in shown] == [1, 1, 1, 1]
    assert said[0].startswith("started: python ")
    assert said[-1] == "ended"
    assert "\x1b" in out.getvalue()
    assert "\x1b" not in path.read_text(encoding="utf-8")


def test_warnings_of_libraries_are_in_it(path, reporter):
    with kept_log(reporter) as keep_in:
        keep_in(path)
        warnings.warn("mind the gap", stacklevel=1)
        logging.getLogger("some.library").warning("of a library")
        logging.getLogger("transformers.some").warning("of one apart")
    text = path.read_text(encoding="utf-8")
    for said in ("UserWarning: mind the gap", "WARNING some.library: of a library", "of one apart"):
        assert text.count(said) == 1


def test_a_bug_leaves_its_traceback_and_a_mistake_one_line(path, reporter):
    for error in (
        ZeroDivisionError("a bug"),
        EquipoiseError("model.none", "no model", "Name it."),
        Stopped(),
    ):
        with pytest.raises(type(error)), kept_log(reporter) as keep_in:
            keep_in(path)
            raise error
    text = path.read_text(encoding="utf-8")
    assert text.count("Traceback") == 1
    assert "\n    ZeroDivisionError: a bug\n" in text
    assert "ended: no model" in text
    assert "ended: stopped" in text


def test_hostile_text_neither_acts_nor_passes_for_a_line(path, reporter, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")
    with kept_log(reporter) as keep_in:
        keep_in(path)
        forged = "2026-01-01 00:00:00,000 INFO run: ended"
        logging.getLogger("judge").warning(
            "\x1b]52;c;cGF5bG9hZA==\x07\x9b31m\u202e sk-0123456789\n%s", forged
        )
    text = path.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "sk-0123456789" not in text
    assert f"\n    {forged}\n" in text


def test_a_full_disk_is_not_the_logs_to_tell(path, reporter, capsys):
    with kept_log(reporter) as keep_in:
        keep_in(Path("/dev/full"))
        reporter.say("a line")
    assert "Logging error" not in capsys.readouterr().err
