"""The agreement of judges, in the report of a judged task."""

import json
from pathlib import Path

import pytest

from equipoise.report import write_report
from equipoise.report.agreement import agreement_sections

AGREEMENT = {
    "judge": "<b>rules</b>",
    "labels": {
        "of": "labels of prompts.jsonl",
        "n": 300,
        "failed": 2,
        "metrics": {"scope_kappa": {"value": 0.23, "low": 0.12, "high": 0.35}},
        "confusion": {"scope": {"S0": {"S0": 213, "S1": 1}, "S1": {"S0": 0, "S1": 1234}}},
    },
}


def test_agreement_is_a_table_of_measures_and_one_of_confusion():
    section = agreement_sections(AGREEMENT)[0]
    assert section.title == "Agreement of the judge with labels of prompts.jsonl"
    assert "300 judged, 2 failed" in section.note
    measures, scopes = (table for _, table in section.tables)
    assert (measures.rows[0][1].text, measures.rows[0][1].interval) == (
        "0.230",
        "0.120\N{EN DASH}0.350",
    )
    assert [cell.text for cell in scopes.rows[1]] == ["S1", "0", "1,234"]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"labels": None},
        {"labels": {}},
        {"labels": {"metrics": [], "confusion": {"x": {"a": 1}}}},
    ],
    ids=str,
)
def test_whatever_the_file_holds_is_no_error(found):
    assert len(agreement_sections(found)) == isinstance(found.get("labels"), dict)


def test_the_report_shows_it_as_text(finished_run: Path):
    (finished_run / "judge_agreement.json").write_text(json.dumps(AGREEMENT))
    page = write_report(finished_run).read_text()
    assert "Agreement of the judge with labels of prompts.jsonl" in page
    assert "&lt;b&gt;rules&lt;/b&gt;" in page
