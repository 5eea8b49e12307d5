"""What a run prints: nothing from outside acts, words stay whole, silence is short."""

import io
import re
import threading
import time

import pytest
from rich.console import Console

from equipoise.errors import EquipoiseError
from equipoise.terminal import console
from equipoise.terminal.console import Column, Reporter, Stage, StepPrinter
from equipoise.terminal.exits import guarded

WIDTHS = (60, 80, 120, 160)
SENTENCE = (
    "The local model is a very small language model, trained from random weights to imitate an "
    "invented clinician whose racial bias was written down beforehand."
)


def piped() -> tuple[Reporter, io.StringIO]:
    out = io.StringIO()
    return Reporter(Console(file=out, highlight=False, width=160)), out


def terminal(width: int) -> tuple[Reporter, io.StringIO]:
    """A terminal without colours, so that every escape in `out` is foreign."""
    out = io.StringIO()
    plain = Console(file=out, force_terminal=True, color_system=None, width=width, highlight=False)
    return Reporter(plain), out


def wait_for(text: str, out: io.StringIO) -> None:
    """Wait for what a thread prints; how long that takes is up to the machine."""
    deadline = time.monotonic() + 60
    while text not in out.getvalue():
        assert time.monotonic() < deadline, out.getvalue()
        time.sleep(0.01)


class TestTextFromOutside:
    FOREIGN = "[/red] [bold]x[/bold] \x1b]52;c;eA==\x07 :smile: [link=http://x]y[/link]"
    SHOWN = r"[/red] [bold]x[/bold] \x1b]52;c;eA==\x07 :smile: [link=http://x]y[/link]"

    @pytest.mark.parametrize("make", [piped, lambda: terminal(120)], ids=["pipe", "terminal"])
    @pytest.mark.parametrize(
        "show",
        [
            lambda reporter, text: reporter.say(text),
            lambda reporter, text: reporter.warn(text),
            lambda reporter, text: reporter.parts([text]),
            lambda reporter, text: reporter.table(text, [Column("a", folds=True)], [["b"]]),
            lambda reporter, text: reporter.table("t", [Column("a", folds=True)], [[text]]),
            lambda reporter, text: reporter.table("t", [Column(text)], [["1"]]),
        ],
        ids=["line", "warning", "parts", "title", "cell", "column"],
    )
    def test_is_shown_as_it_is(self, make, show):
        reporter, out = make()
        show(reporter, self.FOREIGN)
        assert "\x1b" not in out.getvalue()
        assert self.SHOWN in out.getvalue()

    def test_in_an_error_that_ends_the_run(self, capsys):
        def fail(reporter: Reporter) -> None:
            raise EquipoiseError("judge.foreign", f"the judge said {self.FOREIGN}", "Ask another.")

        guarded(fail)
        assert f"error [judge.foreign]: the judge said {self.SHOWN}" in capsys.readouterr().err

    def test_in_the_label_of_a_bar(self):
        reporter, out = terminal(160)
        with reporter.progress("model [/red]\x1b]52;c;eA==\x07", total=3) as advance:
            advance(3)
        assert r"model [/red]\x1b]52;c;eA==\x07" in out.getvalue()


class TestLines:
    @pytest.mark.parametrize("width", WIDTHS)
    def test_no_word_breaks_at_the_edge_of_a_terminal(self, width):
        reporter, out = terminal(width)
        reporter.say(SENTENCE)
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert " ".join(lines) == SENTENCE

    def test_a_path_that_is_too_long_stays_one_that_can_be_copied(self):
        reporter, out = terminal(60)
        path = "/" + "folder/" * 15
        reporter.say(f"report: {path}")
        assert path in out.getvalue()

    def test_a_pipe_gets_whole_lines(self):
        reporter, out = piped()
        reporter.say(SENTENCE * 2)
        assert out.getvalue() == SENTENCE * 2 + "\n"

    def test_indented_lines_stay_indented(self):
        reporter, out = terminal(60)
        reporter.say(f"first\n  {SENTENCE}")
        first, *others = out.getvalue().splitlines()
        assert first == "first"
        assert all(re.match(r"  \S", line) for line in others)


class TestProgress:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch):
        monkeypatch.setattr(console, "_FIRST_LINE", 0.1)
        monkeypatch.setattr(console, "_LINE_EVERY", 0.2)
        monkeypatch.setattr(console, "_LOOKS_EVERY", 0.01)

    @pytest.mark.parametrize(("total", "done"), [(1000, "0 of 1,000, "), (None, "")])
    def test_a_pipe_hears_of_a_stage_before_anything_of_it_is_done(self, total, done):
        reporter, out = piped()
        with reporter.progress("baseline", total=total):
            wait_for("\n", out)
        assert re.match(rf"baseline: {done}0:00:\d\d so far\n", out.getvalue())

    def test_a_pipe_gets_rate_and_time_left_however_often_it_is_advanced(self):
        reporter, out = piped()
        started = time.monotonic()
        with reporter.progress("baseline", total=400) as advance:
            for done in range(1, 401):
                advance(done)
                time.sleep(0.001)
        most = 2 + (time.monotonic() - started) / console._LINE_EVERY
        first, *others, last = out.getvalue().splitlines()
        assert len(others) < most
        assert re.fullmatch(r"baseline: \d+ of 400, [\d.]+/s, ETA 0:00:\d\d", first)
        assert re.fullmatch(r"baseline: 400 of 400, [\d.]+/s, in [\d:]+", last)
        assert "\x1b" not in out.getvalue()

    def test_lines_within_a_stage_are_of_the_innermost_one(self):
        reporter, out = piped()
        with reporter.progress("training", total=9), reporter.progress("baseline", total=5):
            wait_for("baseline: 0 of 5", out)
        _, told, inner = out.getvalue().partition("baseline: 0 of 5")
        assert told
        assert "training" not in inner  # a busy machine may be told of it before the stage within

    @pytest.mark.parametrize("make", [piped, lambda: terminal(120)], ids=["pipe", "terminal"])
    def test_stages_may_end_in_any_order(self, make):
        reporter, out = make()
        first, second = reporter.progress("one", total=2), reporter.progress("two", total=2)
        advance, _ = first.__enter__(), second.__enter__()
        advance(2)
        first.__exit__(None, None, None)
        wait_for("two", out)
        second.__exit__(None, None, None)
        with reporter.progress("three", total=2):
            wait_for("three", out)
        told = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", out.getvalue())
        for name in ("one", "two", "three"):
            assert name in told
        assert not [thread for thread in threading.enumerate() if thread.name == "progress"]

    def test_a_pipe_hears_of_the_stages_of_every_thread(self):
        reporter, out = piped()

        def go_on(name: str) -> None:
            with reporter.progress(name, total=2):
                wait_for(f"{name}: 0 of 2", out)

        threads = [threading.Thread(target=go_on, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "one: 0 of 2" in out.getvalue() and "two: 0 of 2" in out.getvalue()

    def test_nothing_is_said_beside_what_is_printed_anyway(self):
        reporter, out = piped()
        stage, heartbeat = Stage("training", 9), reporter._heartbeat
        stage.started -= 60
        heartbeat._stages.append((0, stage))
        heartbeat._break_silence(last_line=time.monotonic() + 60)
        assert "training" not in out.getvalue()
        heartbeat._break_silence(last_line=time.monotonic() - 60)
        assert "training" in out.getvalue()

    @pytest.mark.parametrize("width", WIDTHS)
    def test_a_terminal_gets_bars_that_fit(self, width):
        reporter, out = terminal(width)
        with (
            reporter.progress("training", total=100),
            reporter.progress("reference", total=14_384) as advance,
        ):
            advance(7_000)
            time.sleep(0.01)
            advance(14_000)
            wait_for("14,000 of 14,384", out)
        assert re.search(r"reference .*14,000 of 14,384, [\d,]+/s, ETA 0:00:\d\d", out.getvalue())
        assert "training" in out.getvalue()

    def test_an_error_inside_leaves_nothing_behind(self):
        reporter, _ = terminal(80)
        with pytest.raises(KeyError), reporter.progress("first"):
            raise KeyError
        with reporter.progress("second", total=1) as advance:
            advance(1)


def test_steps_are_summed_up_with_their_changes():
    reporter, out = piped()
    printer = StepPrinter(reporter, total=20)
    for step in range(1, 21):
        loss = 0.25 if step < 3 else None  # where the engine has one
        printer({"step": step, "reward": step / 2, "loss": loss, "env/ratio": float("nan")})
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert re.match(r"step    2/20  ETA 0:00:\d\d  reward 0.750  loss 0.250", lines[0])
    assert "reward 1.750 (+1.000)" in lines[1]
    assert "loss" not in lines[1] and "nan" not in out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figures_of_a_step_stay_with_their_names(width):
    reporter, out = terminal(width)
    printer = StepPrinter(reporter, total=2)
    names = ("disparity_ratio", "parse_rate", "clinical_slope", "case_error", "decision_spread")
    for step in (1, 2):
        printer({"step": step, "reward": 0.5, **{f"env/{name}": 1.25 for name in names}})
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for name in names:
        assert any(f"{name.replace('_', ' ')} 1.250 (+0.000)" in line for line in lines)


class TestTables:
    COLUMNS = (
        *(Column("metric", folds=True), Column("before"), Column("interval", spare=1)),
        *(Column("p", spare=2), Column("verdict", folds=True)),
    )
    ROWS = (
        ("mean_invasiveness", "1.432", "-0.00861 to +0.02800", "<0.001", "no evidence"),
        ("a_name_" * 9, "12,345,678", "-0.360 to -0.267", "-", "better"),
    )

    def printed(self, width: int) -> str:
        reporter, out = terminal(width)
        reporter.table("Title", self.COLUMNS, self.ROWS, all_in="report.html")
        shown = out.getvalue()
        assert "│" not in shown or max(map(len, shown.splitlines())) <= width
        return shown

    @pytest.mark.parametrize("width", [20, 30, 40, *WIDTHS])
    def test_no_figure_is_cut_at_any_width(self, width):
        shown = self.printed(width)
        left_out = " ".join(shown.split()).partition("left out, ")[2]
        for place, column in enumerate(self.COLUMNS[1:4], 1):
            whole = all(row[place] in " ".join(shown.split()) for row in self.ROWS)
            assert whole or column.name in left_out

    def test_the_least_important_goes_first_and_is_named(self):
        assert "left out" not in self.printed(120)
        assert "left out, for the terminal is narrow: p; see report.html" in self.printed(68)
        assert re.search(r"narrow: interval, p;\s+see\s+report.html", self.printed(52))

    def test_what_has_no_room_for_columns_is_a_list(self):
        assert "  before 1.432" in self.printed(30)
