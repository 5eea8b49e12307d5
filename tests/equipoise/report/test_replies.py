"""The table of replies that a task may want, and text in it that must not be trusted."""

from environments.base import Failure, Rollout, Score
from environments.presentation import Column, Presentation, ReplyTable
from equipoise.report.replies import reply_sections
from equipoise.report.run_files import Reply, RunFiles

COLUMNS = (Column("Queries", "queries"), Column("Found", "documents"))
COLUMNS += (Column("Answer", "answer", "gold"),)
TABLE = ReplyTable("Questions side by side", "What was asked and answered", COLUMNS)


def reply(number, completion, **evidence):
    metadata = {"question": f"Question {number}?", "gold": "B"}
    rollout = Rollout(f"q{number}", f"q{number}", "test", "", completion, metadata)
    return Reply(rollout, Score(1.0, evidence=evidence))


def run(before, after, table=TABLE):
    return RunFiles(
        evaluations={"before": {}, "after": {}},
        replies={"before": before, "after": after},
        presentation=Presentation(table=table),
    )


def only(found):
    (section,) = reply_sections(found)
    return section


def test_a_task_that_wants_none_has_none():
    assert reply_sections(run((reply(0, ""),), (), None)) == ()
    assert reply_sections(run((), ())) == ()


def test_columns_show_the_evidence_of_both_stages():
    evidence = {"documents": [f"d{n}" for n in range(9)], "answer": "B", "queries": ["x", "y"]}
    before = [reply(n, "vague", documents=["x"], answer="A") for n in range(60) for _ in range(2)]
    after = tuple(reply(n, f"precise {n}", **evidence) for n in range(60))
    section = only(run(tuple(before), after))
    assert (section.title, section.folded) == ("Questions side by side", False)
    ((title, table),) = section.tables
    assert title == "Question 0?"
    ((title, _),) = only(run(before, (*before[:40], *after[20:]))).tables
    assert title == "Question 20?", "the first one whose replies differ"
    assert table.columns == ("", "Queries", "Found", "Answer")
    assert [cell.text for cell in table.rows[0]] == ["Before training", "vague", "x", "A"]
    assert [cell.text for cell in table.rows[1]][1:3] == ["x; y", "d0; d1; d2; d3; d4 and 4 more"]
    assert [row[-1].note for row in table.rows] == ["wrong, it is B", "right"]


def test_unreadable_and_endless_replies_do_no_harm():
    broken = reply(0, "x" * 9_999, unparseable="no queries")
    failure = Failure("transport_timeout", "timeout")
    failed = Reply(broken.rollout, Score(None, {}, failure, {"documents": {"a": [3]}}))
    rows = only(run((broken,), (failed,))).tables[0][1].rows
    assert [row[-1].note for row in rows] == ["no queries", "timeout"]
    assert len(rows[0][1].text) < 1_000
