"""The output of a run escapes text from outside, and keeps words and figures whole."""

import io
import logging
import re
import subprocess
import sys
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from equipoise.files import console
from equipoise.files.console import (
    Column,
    Reporter,
    escaped,
    printing_notes,
    showing_steps,
    sparkline,
)
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import guarded

WIDTHS = (60, 160)
SENTENCE = (
    "The local model is a very small language model, trained from random weights to imitate an "
    "invented clinician whose racial bias was written down beforehand."
)


def piped():
    out = io.StringIO()
    return Reporter(Console(file=out, highlight=False, width=160)), out


def terminal(width):
    """A terminal without colours, so that every escape in `out` is foreign."""
    out = io.StringIO()
    plain = Console(file=out, force_terminal=True, color_system=None, width=width, highlight=False)
    return Reporter(plain), out


class TestTextFromOutside:
    FOREIGN = "[/red] [bold]x[/bold] \x1b]52;c;eA==\x07 :smile: [link=http://x]y[/link]"
    SHOWN = r"[/red] [bold]x[/bold] \x1b]52;c;eA==\x07 :smile: [link=http://x]y[/link]"

    @pytest.mark.parametrize("make", [piped, lambda: terminal(120)], ids=["pipe", "terminal"])
    @pytest.mark.parametrize(
        "show",
        [
            lambda reporter, text: reporter.say(text),
            lambda reporter, text: reporter.warn(text),
            lambda reporter, text: reporter.table(text, [Column("a", folds=True)], [["b"]]),
            lambda reporter, text: reporter.table("t", [Column("a", folds=True)], [[text]]),
            lambda reporter, text: reporter.table("t", [Column(text)], [["1"]]),
        ],
        ids=["line", "warning", "title", "cell", "column"],
    )
    def test_is_shown_as_it_is(self, make, show):
        reporter, out = make()
        show(reporter, self.FOREIGN)
        assert "\x1b" not in out.getvalue()
        assert self.SHOWN in out.getvalue()

    def test_in_an_error_that_ends_the_run(self, capsys):
        def fail(reporter):
            raise EquipoiseError("judge.foreign", f"the judge said {self.FOREIGN}", "Ask another.")

        guarded(fail)
        assert f"error [judge.foreign]: the judge said {self.SHOWN}" in capsys.readouterr().err

    def test_in_the_label_of_a_bar(self):
        reporter, out = terminal(160)
        with reporter.progress("model [/red]\x1b]52;c;eA==\x07", total=3) as advance:
            advance(3)
        assert r"model [/red]\x1b]52;c;eA==\x07" in out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminal_breaks_lines_between_words_and_keeps_their_indent(width):
    reporter, out = terminal(width)
    path = "/" + "folder/" * 25
    reporter.say(f"first\n  {SENTENCE}\nreport: {path}")
    first, *others = out.getvalue().splitlines()
    assert first == "first" and any(line.endswith(path) for line in others)
    sentence = [line for line in others if path not in line and line != "report:"]
    assert max(map(len, sentence)) <= width
    assert all(re.match(r"  \S", line) for line in sentence)
    assert " ".join(line.strip() for line in sentence) == SENTENCE


def test_a_pipe_gets_whole_lines():
    reporter, out = piped()
    reporter.say(SENTENCE * 2)
    assert out.getvalue() == SENTENCE * 2 + "\n"


class TestProgress:
    def test_a_pipe_hears_of_a_stage_now_and_then_with_the_time_left(self, monkeypatch):
        reporter, out = piped()
        monkeypatch.setattr(console, "_LINE_EVERY", 0.0)
        with reporter.progress("loading"), reporter.progress("baseline", total=4_000) as advance:
            advance(1_000)
            monkeypatch.setattr(console, "_LINE_EVERY", 60.0)
            advance(2_000)
            advance(4_000)
        began, first, last = out.getvalue().splitlines()
        assert began == "loading ..."
        assert re.fullmatch(r"baseline: 1,000 of 4,000, ETA 0:00:\d\d", first)
        assert re.fullmatch(r"baseline: 4,000 of 4,000, in [\d:]+", last)

    def test_what_was_done_before_is_no_measure_of_the_time_left(self, monkeypatch):
        now = iter([0.0, 0.0, 30.0, 30.0, 30.0])
        monkeypatch.setattr(console.time, "monotonic", lambda: next(now, 30.0))
        reporter, out = piped()
        with reporter.progress("training", total=100, done=90) as advance:
            advance(95)
        assert out.getvalue() == "training: 95 of 100, ETA 0:00:30\n"

    @pytest.mark.parametrize("width", WIDTHS)
    def test_a_terminal_gets_a_bar_for_each_stage_whatever_ends_first(self, width):
        reporter, out = terminal(width)
        first, second = reporter.progress("one", total=9), reporter.progress("two", total=14_384)
        first.__enter__()
        advance = second.__enter__()
        first.__exit__(None, None, None)
        advance(7_000)
        reporter._bars.refresh()
        reporter.say("a line above")
        second.__exit__(None, None, None)
        with pytest.raises(KeyError), reporter.progress("three"):
            raise KeyError
        assert reporter._bars is None, "an error leaves nothing behind"
        for shown in ("one", "two", "7000/14384", "a line above", "three"):
            assert shown in out.getvalue()


def test_each_step_is_a_line_and_the_rewards_a_sparkline():
    reporter, out = piped()
    with printing_notes(reporter), showing_steps(reporter.progress, 20, 0) as show:
        for step in range(1, 21):
            loss = 0.25 if step < 3 else None  # where the engine has one
            show({"step": step, "reward": step / 2, "loss": loss, "env/ratio": float("nan")})
    *lines, end = out.getvalue().splitlines()
    assert end.startswith("training: 20 of 20")
    steps = [line for line in lines if line.startswith("step")]
    assert len(steps) == 20 and len(lines) == 30
    assert re.match(r"step    2/20  ETA 0:00:\d\d  reward 1.000  loss 0.250", steps[1])
    assert "loss" not in steps[2] and "nan" not in out.getvalue()
    assert lines[2] == "reward ▁█  0.500 to 1.000"


def test_notes_go_to_others_again_in_whichever_order_two_printers_end():
    printers = [ExitStack(), ExitStack()]
    for printer in printers:
        printer.enter_context(printing_notes(Reporter()))
    for printer in printers:
        printer.close()
    assert logging.getLogger("equipoise").propagate


def test_a_sparkline_of_many_values_is_of_their_means():
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([float(n // 100) for n in range(800)]) == "".join(b * 5 for b in "▁▂▃▄▅▆▇█")


@pytest.mark.parametrize("width", [20, *WIDTHS])
def test_no_figure_of_a_table_is_cut_at_any_width(width):
    reporter, out = terminal(width)
    columns = (Column("metric", folds=True), Column("before"), Column("interval"))
    rows = (
        ("mean_invasiveness", "1.432", "-0.00861 to +0.02800"),
        ("a_name_" * 9, "12,345,678", "-0.360 to -0.267"),
    )
    reporter.table("Title", columns, rows)
    for _, *figures in rows:
        assert all(figure in out.getvalue() for figure in figures)
    assert width < 60 or max(map(len, out.getvalue().splitlines())) <= width


#: Clears the screen, sets the title, writes the clipboard, begins a sequence in eight bits, hides
#: what stood there, deletes, turns the direction, shows nothing, half a character, begins a line.
HOSTILE = ("\x1b[2J", "\x1b]0;pwn\x07", "\x1b]52;c;cm0gLXJmIH4=\x07", "\x9b2J", "all\rwell")
HOSTILE += ("abc\b\b\b", "\u202etxet", "\u2067txet", "in\u200bvisible \ufeff\U000e0041", "\ud800")
HOSTILE += ("a\u2028b",)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_visible_character_is_spelt_out(text):
    assert escaped(text).isprintable()
    assert "\\" in escaped(text)


@pytest.mark.parametrize("text", ["Größe: 1,2 µg", "שלום", "नमस्ते", "👩\u200d⚕️", "a\tb\nc", ""])
def test_what_people_write_stays(text):
    assert escaped(text) == text


@given(st.text())
def test_nothing_but_newlines_and_tabs_controls(text):
    controls = {c for c in escaped(text) if ord(c) < 32 or 0x7F <= ord(c) < 0xA0}
    assert controls <= {"\n", "\t"}
    escaped(text).encode()  # no half of a character is left


@pytest.mark.parametrize(
    "quote",
    [
        "logging.getLogger('library').warning('said: %s', text)",
        "warnings.warn(text)",
        "guarded(lambda reporter: {}[text])",
    ],
    ids=["log", "warning", "traceback"],
)
def test_logs_warnings_and_tracebacks_are_escaped_too(quote):
    lines = [
        "import logging, warnings",
        "from equipoise.files.exits import guarded",
        "guarded(lambda reporter: None)",
        r"text = 'no \x1b]52;c;eA==\x07 model'",
        quote,
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert r"no \x1b]52;c;eA==\x07 model" in printed
    assert "\x1b" not in printed
