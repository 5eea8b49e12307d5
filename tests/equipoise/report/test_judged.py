"""Replies by prompt scope and the agreement of judges, in the report of a judged task."""

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.report import write_report
from equipoise.report.judged import agreement_sections, reply_sections
from equipoise.report.run_files import Reply, RunFiles

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


def reply(prompt: str, scope: str, combined: float | None, text: str = "reply") -> Reply:
    evidence: dict[str, Any] = {"label": {"tier": "C", "scope": scope}}
    if combined is not None:
        evidence["decision"] = {"combined": combined, "reasons": ["dharma is low"]}
    return Reply("set", {"question": f"Q {prompt}"}, prompt, text, None, evidence)


def run(before: list[Reply], after: list[Reply]) -> RunFiles:
    replies = {"before": tuple(before), "after": tuple(after)}
    return RunFiles("run", {}, "", {}, {}, {}, replies)


def test_of_each_scope_the_prompts_that_changed_most_are_shown():
    changes = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.3}
    before = [reply(name, "S3", 0.0) for name in changes] + [reply("e", "S0", 1.0)]
    after = [reply(name, "S3", change) for name, change in changes.items()]
    section = reply_sections(run(before, [*after, reply("e", "S0", 0.2, "worse")]))[0]
    clinical, outside = (table for _, table in section.tables)
    assert [row[0].text for row in outside.rows] == ["Q b", "Q c", "Q d"]
    assert [row[2].text for row in clinical.rows] == ["worse"]
    assert clinical.rows[0][2].note == "combined 0.200; dharma is low"


def test_a_reply_without_a_decision_says_why():
    unread = Reply("s", {}, "p", "", None, {"unparseable": "it holds no word"})
    before, after = [reply("p", "S0", 0.5)], [unread]
    cell = reply_sections(run(before, after))[0].tables[0][1].rows[0][2]
    assert cell.note == "combined \N{EN DASH}; it holds no word"


@pytest.mark.parametrize("evidence", [{}, {"label": "S0"}, {"label": {}}, {"label": {"scope": 0}}])
def test_a_task_without_scopes_has_no_such_section(evidence):
    plain = Reply("s", {}, "p", "text", None, evidence)
    assert reply_sections(run([plain], [plain])) == ()


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


def test_the_report_shows_both_as_text(finished_run: Path):
    (finished_run / "judge_agreement.json").write_text(json.dumps(AGREEMENT))
    for stage in ("baseline", "final"):
        path = finished_run / stage / "rollouts.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["evidence"]["label"] = {"tier": "C", "scope": "S3"}
            row["completion"] = "<script>alert(1)</script>"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(finished_run).read_text()
    assert "Replies by prompt scope" in page
    assert "Agreement of the judge with labels of prompts.jsonl" in page
    assert "&lt;b&gt;rules&lt;/b&gt;" in page
    assert "<script>alert" not in page
