"""Turns: what is worked at overlaps, what fails ends alone, and a signal ends all."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from environments.chat.accounting import Accounts, Usage
from environments.chat.model import Budget
from equipoise.evaluate.evaluate import Turn, Work, in_thread, run_concurrently
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.run.ledger import Meter


def nothing(*_: object) -> None:
    """Nobody is told."""


def doing(*works: Callable[[], Any], got: list[Any]) -> Turn[None]:
    """A turn that keeps what came of its works."""
    for work in works:
        result = yield Work(work, nothing)
        got.append(result)


def test_works_of_several_turns_are_done_at_once_and_each_gets_its_own() -> None:
    together = threading.Barrier(2, timeout=60)  # breaks unless both are there
    got: list[list[Any]] = [[], []]
    turns = {
        str(n): doing(lambda: together.wait() >= 0, lambda n=n: n, got=got[n])  # type: ignore[misc]
        for n in range(2)
    }
    assert run_concurrently(turns, nothing) == {}
    assert got == [[True, 0], [True, 1]]


def test_between_works_one_turn_goes_on_at_a_time_in_the_callers_thread() -> None:
    threads: set[int] = set()

    def turn() -> Iterator[Work]:
        for _ in range(3):
            threads.add(threading.get_ident())
            yield Work(int, nothing)
        threads.add(threading.get_ident())

    run_concurrently({"a": turn(), "b": turn()}, nothing)  # type: ignore[dict-item]
    assert threads == {threading.get_ident()}


def test_an_error_ends_its_turn_alone_and_is_told() -> None:
    error, got, calls = EquipoiseError("x.away", "away", "Wait."), [], []  # type: ignore[var-annotated]

    def fails() -> None:
        raise error

    turns = {"bad": doing(fails, int, got=[]), "good": doing(int, int, got=got)}
    assert run_concurrently(turns, lambda *call: calls.append(call)) == {"bad": error}
    assert calls == [("bad", error)]
    assert got == [0, 0]


def test_whatever_else_comes_up_stops_what_is_worked_at_and_every_turn() -> None:
    stopped, tidied = threading.Event(), []

    def waits() -> Turn[None]:
        try:
            yield Work(lambda: stopped.wait(5), stopped.set)
        except Stopped:
            tidied.append("turn")
            raise

    def breaks() -> Turn[None]:
        yield Work(int, nothing)
        raise Stopped

    with pytest.raises(Stopped):
        run_concurrently({"waits": waits(), "breaks": breaks()}, nothing)
    assert stopped.is_set()
    assert tidied == ["turn"]


def test_what_others_ask_meanwhile_is_not_for_the_meter() -> None:
    judge, meter = Accounts("judge", Budget()), Meter()
    judge.spend(Usage(1, 1))
    turn = in_thread(meter, int, nothing)
    next(turn)
    judge.spend(Usage(10, 10))
    assert meter.usage().calls["judge"]["prompt_tokens"] == 1
    with pytest.raises(StopIteration):
        turn.send(0)
    judge.spend(Usage(100, 100))
    assert meter.usage().calls["judge"]["prompt_tokens"] == 101


def test_what_cannot_be_stopped_is_done_at_once() -> None:
    with pytest.raises(StopIteration) as ended:
        next(in_thread(Meter(), lambda: 7, None))
    assert ended.value.value == 7
