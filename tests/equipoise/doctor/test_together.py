"""Checks run at once; what is late, fails or breaks leaves every check with a result."""

from threading import Event

import pytest

from equipoise.doctor.checks import CHECKS, DISK, GPUS, HUB, MODEL, PYTHON, failure, ok
from equipoise.doctor.together import Job, run_together
from equipoise.errors import EquipoiseError


def states(results):
    return [(result.check.name, result.status) for result in results]


def test_jobs_run_at_once_and_results_have_the_order_of_the_table():
    """Each of the two ends only when the other has begun."""
    first, second = Event(), Event()

    def look(own, other, check):
        own.set()
        yield ok(check, "") if other.wait(20) else failure(check, "it waited for the other")

    jobs = [
        Job((MODEL,), lambda: look(first, second, MODEL), 30),
        Job((PYTHON,), lambda: look(second, first, PYTHON), 30),
    ]
    assert states(run_together(jobs)) == [("Python", "ok"), ("model", "ok")]
    assert CHECKS.index(PYTHON) < CHECKS.index(MODEL)


def test_what_is_late_is_not_checked_and_holds_up_nothing():
    never = Event()

    def look():
        yield ok(HUB, "told in time")
        never.wait()
        yield ok(MODEL, "too late")

    results = run_together([Job((HUB, MODEL), look, 0.2), Job((DISK,), lambda: [ok(DISK, "")], 9)])
    assert states(results) == [
        ("disk", "ok"),
        ("Hugging Face token", "ok"),
        ("model", "not checked"),
    ]
    assert results[2].says == "no answer within 0.2 seconds"
    never.set()


def test_a_refusal_is_the_failure_of_the_check_that_was_reached():
    def look():
        yield ok(PYTHON, "")
        raise EquipoiseError("no such GPU", "Buy one.")

    results = run_together([Job((PYTHON, GPUS, DISK), look, 9)])
    assert states(results) == [("Python", "ok"), ("GPUs", "failure"), ("disk", "not checked")]
    assert (results[1].says, results[1].remedy) == ("no such GPU", "Buy one.")
    assert results[2].says == "not reached: see GPUs"


@pytest.mark.parametrize("bug", [ZeroDivisionError, TimeoutError])
def test_a_bug_is_no_result(bug):
    def look():
        raise bug

    with pytest.raises(bug):
        run_together([Job((PYTHON,), look, 9)])


def test_a_check_that_says_nothing_is_not_lost():
    assert states(run_together([Job((PYTHON,), list, 9)])) == [("Python", "not checked")]
