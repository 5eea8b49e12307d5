"""The report's part on modes: the tables, the questions, and text that must not be trusted."""

from equipoise.report.modes import mode_sections
from equipoise.report.run_files import Reply, RunFiles

ESTIMATE = {"value": 0.5, "low": 0.4, "high": 0.6}
MODES = {
    "confidence": 0.95,
    "metric": "accuracy",
    "modes": {
        "no_retrieval": {"accuracy": ESTIMATE, "retrieval_recall": {"value": None}},
        "planning": {"accuracy": ESTIMATE, "retrieval_recall": ESTIMATE},
    },
    "comparisons": [
        {
            "modes": ["no_retrieval", "planning"],
            "difference": 0.1,
            "low": 0.05,
            "high": 0.15,
            "p_holm": 0.01,
            "test": "exact McNemar",
            "verdict": "better",
        }
    ],
    "seconds": {"search": 0.0021},
    "sources": {"index": "bm25:1234"},
    "notes": ["Options were shown."],
}


def reply(number: int, completion: str, **evidence: object) -> Reply:
    metadata = {"question": f"Question {number}?", "gold": "B"}
    return Reply(f"q{number}", metadata, "", completion, None, evidence)


def run(modes: dict, before: tuple[Reply, ...] = (), after: tuple[Reply, ...] = ()) -> RunFiles:
    evaluations = {"before": {"metrics": {}}, "after": {"metrics": {}}}
    return RunFiles("run", {}, "", evaluations, {}, {}, {"before": before, "after": after}, modes)


def test_a_task_without_modes_has_no_such_part() -> None:
    assert mode_sections(run({})) == ()


def test_modes_pairs_times_and_notes_are_shown() -> None:
    section, _ = mode_sections(run(MODES))
    (_, modes), (_, pairs) = section.tables
    assert modes.columns == ("Mode", "Accuracy", "Retrieval recall")
    assert [cell.text for cell in modes.rows[0]][:2] == ["no retrieval", "0.500"]
    assert pairs.rows[0][0].text.endswith("planning")
    assert "better" in pairs.rows[0][-1].text
    assert "search 2.1 ms" in section.note
    assert "Options were shown." in section.note
    assert "index bm25:1234" in section.note


def test_questions_show_queries_documents_and_answers_of_both_stages() -> None:
    found = {"documents": [f"d{n}" for n in range(9)], "answer": "B", "queries": ["x", "y", "z"]}
    before = tuple(reply(n, "vague", documents=["x"], answer="A") for n in range(60))
    after = tuple(reply(n, f"precise {n}", **found) for n in range(60))
    _, section = mode_sections(run(MODES, before, after))
    assert [title for title, _ in section.tables] == [f"Question {n}?" for n in range(0, 60, 10)]
    rows = section.tables[1][1].rows
    assert [cell.text for cell in rows[0]] == ["Before training", "vague", "x", "A"]
    assert [cell.text for cell in rows[1]][1:] == ["x; y; z", "d0, d1, d2, d3, d4 and 4 more", "B"]
    assert [row[-1].note for row in rows] == ["wrong, it is B", "right"]


def test_damaged_modes_and_unreadable_replies_do_no_harm() -> None:
    broken = Reply("q", {}, "", "x" * 9_999, None, {"unparseable": "no queries"})
    failed = Reply("q", {}, "", "\x00", "timeout", {"documents": 3})
    _, section = mode_sections(run({"modes": None, "comparisons": 3}, (broken,), (failed,)))
    rows = section.tables[0][1].rows
    assert [row[-1].note for row in rows] == ["no queries", "timeout"]
    assert len(rows[0][1].text) < 1_000
