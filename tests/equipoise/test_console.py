import io
import re

from rich.console import Console

from equipoise.console import Reporter, StepPrinter


def piped() -> tuple[Reporter, io.StringIO]:
    out = io.StringIO()
    return Reporter(Console(file=out, highlight=False, soft_wrap=True)), out


def test_piped_progress_is_a_few_plain_lines_with_the_time_left():
    reporter, out = piped()
    with reporter.progress("baseline", total=1000) as advance:
        for done in range(10, 1001, 10):
            advance(done)
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"baseline: 100 of 1,000, ETA 0:00:\d\d", lines[0])
    assert lines[-1].startswith("baseline: 1,000 of 1,000")
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_a_live_bar():
    out = io.StringIO()
    reporter = Reporter(Console(file=out, force_terminal=True, width=100))
    with reporter.progress("baseline", total=10) as advance:
        advance(10)
    assert "ETA" in out.getvalue()
    assert "10/10" in out.getvalue()


def test_steps_are_summed_up_with_their_changes():
    reporter, out = piped()
    printer = StepPrinter(reporter, total=20)
    for step in range(1, 21):
        printer({"step": step, "reward": step / 2, "env/disparity_ratio": float("nan")})
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert re.match(r"step    2/20  ETA 0:00:\d\d  reward 0.750", lines[0])
    assert "reward 1.750 (+1.000)" in lines[1]
    assert "nan" not in out.getvalue()


def test_markup_in_a_text_is_shown_as_it_is():
    reporter, out = piped()
    reporter.say("[red]not a style[/red]")
    reporter.warn("[x]")
    assert "[red]not a style[/red]" in out.getvalue()
    assert "warning: [x]" in out.getvalue()
