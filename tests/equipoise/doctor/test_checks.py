"""Every check has a result, whatever fails or is needed by several."""

import pytest

from equipoise.doctor.checks import Case, Check, failure, ok, results_of, unchecked, warning
from equipoise.files.errors import EquipoiseError


def check(name, run):
    return Check(name, "", "Buy one.", run)


def test_what_fails_for_several_is_the_failure_of_the_first():
    looks = []

    def gpu(case):
        looks.append(case)
        raise EquipoiseError("gpu.none", "no such GPU", "Sell it.")

    def look(case):
        yield ok("a screen")
        yield ok(case.once(gpu))

    checks = (check("GPUs", look), check("disk", lambda _: [ok("")]), check("memory", look))
    results = results_of(checks, Case())
    assert [(r.check.name, r.status, r.says) for r in results] == [
        ("GPUs", "ok", "a screen"),
        ("GPUs", "failure", "no such GPU"),
        ("disk", "ok", ""),
        ("memory", "ok", "a screen"),
        ("memory", "not checked", "not reached: see GPUs"),
    ]
    assert len(looks) == 1


def test_a_bug_is_no_result():
    def look(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        results_of([check("Python", look)], Case())


def test_the_usual_remedy_is_told_where_something_is_wrong():
    findings = [failure(""), warning("", "Sell it."), ok(""), unchecked("")]
    results = results_of([check("Python", lambda _: findings)], Case())
    assert [result.remedy for result in results] == ["Buy one.", "Sell it.", "", ""]
