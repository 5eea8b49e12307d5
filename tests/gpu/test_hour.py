"""The hour's records, time limits and failures, with steps that need no GPU."""

import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from data_prep.files import read_jsonl
from equipoise.terminal.console import Reporter
from tests.gpu import hour
from tests.gpu.attempt import Attempt, Figures, StepError
from tests.gpu.hour import HourOptions, run
from tests.gpu.steps import Step
from tests.refusals import refusal


class Counted:
    """A step's act that counts its calls, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.calls, self.failures = 0, failures

    def __call__(self, attempt: Attempt) -> Figures:
        self.calls += 1
        if self.calls <= self.failures:
            raise StepError("not as it should be | at all")
        return {"calls": self.calls}


def options(folder: Path, *steps: str, minutes: float = 60.0) -> HourOptions:
    return HourOptions(steps=steps, device="cpu", output_dir=folder, minutes=minutes)


def step(name: str, act: Counted, *needs: str) -> Step:
    return Step(name, f"{name} works", f"{name} on a GPU", act, 1, needs=needs)


def statuses(folder: Path) -> dict[str, str]:
    return {row["step"]: row["status"] for row in read_jsonl(folder / "cpu" / "hour.jsonl")}


def test_a_failure_is_recorded_stops_only_what_needs_it_and_is_repeated_where_named(
    tmp_path: Path,
) -> None:
    acts = first, second, third = Counted(), Counted(failures=1), Counted()
    steps = (step("a", first), step("b", second), step("c", Counted(), "b"), step("d", third))
    for _ in range(2):  # nothing of it is done again
        with refusal("hour.failed-steps", "b"):
            run(options(tmp_path), Reporter(), steps)
        assert statuses(tmp_path) == {"a": "done", "b": "failed", "c": "not covered", "d": "done"}
        assert [act.calls for act in acts] == [1, 1, 1]
    table = (tmp_path / "cpu" / "hour.md").read_text()
    assert r"StepError: not as it should be \| at all" in table and "b is not done" in table
    run(options(tmp_path, "b", "c"), Reporter(), steps)
    assert set(statuses(tmp_path).values()) == {"done"}
    assert [act.calls for act in acts] == [1, 2, 1]


def test_it_ends_with_what_was_not_covered_which_is_looked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = step("b", Counted())
    steps = (step("a", Counted()), replace(b, lacking=lambda _: "no vLLM"))
    run(options(tmp_path), Reporter(), (*steps, step("c", Counted(), "b")))
    assert "not covered: b, c" in capsys.readouterr().out
    assert "no vLLM" in (tmp_path / "cpu" / "hour.md").read_text()
    run(options(tmp_path), Reporter(), (b,))
    assert statuses(tmp_path) == {"a": "done", "b": "done", "c": "not covered"}
    monkeypatch.setattr(hour, "count_gpus", lambda: 0)
    with refusal("hour.no-gpu"):
        run(replace(options(tmp_path), device="cuda"), Reporter(), steps)
    with refusal("hour.unknown-step", "z"):
        run(options(tmp_path, "z"), Reporter(), steps)


def test_a_step_that_may_take_longer_than_what_is_left_is_not_begun(tmp_path: Path) -> None:
    act = Counted()
    run(options(tmp_path, minutes=0.5), Reporter(), (step("a", act),))
    assert act.calls == 0 and not (tmp_path / "cpu" / "hour.jsonl").exists()


def attempt(folder: Path, minutes: float = 1) -> Attempt:
    return Attempt("a", folder, "cpu", minutes)


SLEEPS_WITH_A_CHILD = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleep, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def child_in(log: Path) -> int:
    return int(log.read_text().split()[-1]) if log.exists() and log.read_text().strip() else 0


@pytest.mark.parametrize("limited", [True, False], ids=["at its limit", "when asked to"])
def test_a_command_is_killed_with_its_children(tmp_path: Path, *, limited: bool) -> None:
    log, started = tmp_path / "logs" / "a.log", time.monotonic()
    if limited:
        with pytest.raises(StepError, match="not ended after"):
            attempt(tmp_path, 3 / 60).python("-c", SLEEPS_WITH_A_CHILD)
    else:
        tried = attempt(tmp_path)
        tried.python("-c", SLEEPS_WITH_A_CHILD, until=lambda: child_in(log) > 0)
    assert time.monotonic() - started < 30
    pid = child_in(log)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_command_says_how_it_failed_and_what_it_took(tmp_path: Path) -> None:
    tried = attempt(tmp_path)
    with pytest.raises(StepError, match="exit code 3: two / three / four"):
        tried.python("-c", "print('one\\ntwo\\nthree\\nfour'); raise SystemExit(3)")
    assert tried.python("-c", "print(5); raise SystemExit(3)", code=3) == "5\n"
    with pytest.raises(StepError, match="exit code 0"):
        tried.python("-c", "print('too early')", until=lambda: False)
    tried.python("-c", "import time; time.sleep(1)")
    assert tried.peak > 1_000_000
