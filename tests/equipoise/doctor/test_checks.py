"""Checks run at once; what is late, fails or breaks leaves every check with a result."""

from threading import Event

import pytest

from equipoise.doctor.checks import (
    Case,
    Check,
    NotCheckedError,
    failure,
    ok,
    run_together,
    unchecked,
    warning,
)
from equipoise.files.errors import EquipoiseError


def check(name, run, seconds=30.0):
    return Check(name, "", "Buy one.", run, seconds=seconds)


def states(*checks):
    return [(r.check.name, r.status, r.says) for r in run_together(checks, Case())]


def test_checks_run_at_once_and_results_have_their_order():
    """Each of the two ends only when the other has begun."""
    first, second = Event(), Event()

    def look(own, other):
        own.set()
        yield ok("") if other.wait(20) else failure("it waited for the other")

    results = states(
        check("first", lambda _: look(first, second)),
        check("second", lambda _: look(second, first)),
    )
    assert results == [("first", "ok", ""), ("second", "ok", "")]


def test_what_is_late_is_not_checked_and_holds_up_nothing():
    never = Event()

    def look(told):
        yield from told
        never.wait()
        yield ok("too late")

    results = states(
        check("silent", lambda _: look([]), 0.2),
        check("slow", lambda _: look([ok("told in time")]), 0.2),
        check("quick", lambda _: [ok("")]),
    )
    never.set()
    assert results == [
        ("silent", "not checked", "no answer within 0.2 seconds"),
        ("slow", "ok", "told in time"),
        ("slow", "not checked", "no answer within 0.2 seconds"),
        ("quick", "ok", ""),
    ]


def test_what_fails_for_several_is_the_failure_of_the_first():
    looks = []

    def gpu(case):
        looks.append(case)
        raise EquipoiseError("gpu.none", "no such GPU", "Sell it.")

    def look(case):
        yield ok(case.once(gpu))

    results = states(check("GPUs", look), check("disk", lambda _: [ok("")]), check("memory", look))
    assert results == [
        ("GPUs", "failure", "no such GPU"),
        ("disk", "ok", ""),
        ("memory", "not checked", "not reached: see GPUs"),
    ]
    assert len(looks) == 1


def test_what_the_user_left_out_and_what_says_nothing_is_not_checked():
    def look(_):
        raise NotCheckedError("--no-gpu")

    assert states(check("GPUs", look), check("Python", lambda _: [])) == [
        ("GPUs", "not checked", "--no-gpu"),
        ("Python", "not checked", "it said nothing"),
    ]


@pytest.mark.parametrize("bug", [ZeroDivisionError, TimeoutError])
def test_a_bug_is_no_result(bug):
    def look(_):
        raise bug

    with pytest.raises(bug):
        states(check("Python", look))


def test_the_usual_remedy_is_told_where_something_is_wrong():
    findings = [failure(""), warning("", "Sell it."), ok(""), unchecked("")]
    results = run_together([check("Python", lambda _: findings)], Case())
    assert [result.remedy for result in results] == ["Buy one.", "Sell it.", "", ""]
