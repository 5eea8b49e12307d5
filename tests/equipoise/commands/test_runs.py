"""`equipoise runs` lists runs, `equipoise view` opens the report of one."""

import webbrowser

import pytest

from equipoise.commands.main import main
from equipoise.files.disk import write_json
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance


@pytest.fixture
def results(tmp_path):
    for name, started in (("second", "2026-02"), ("first", "2026-01")):
        run = RunDirectory(tmp_path / "dharma" / name)
        run.root.mkdir(parents=True)
        run.ledger.create(Provenance(task="dharma", model="my/model", started=started))
        for stage, value in (("baseline", 0.25), ("final", 0.75)):
            metric = {"value": value, "low": None, "high": None}
            # A mean reward is an objective that evaluation.json does not have.
            content = {"metrics": {"accuracy": metric}, "objective": "reward"}
            write_json(run.evaluation(stage), content)
    write_json(run.comparison, {"metrics": {"accuracy": {"p_holm": 0.01, "verdict": "better"}}})
    run.report.write_text("<html>")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "provenance.json").write_text("{")
    return tmp_path


def said(capsys, *words, code=0):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    assert ended.value.code == code
    told = capsys.readouterr()
    return told.out + told.err


def test_runs_are_rows_and_the_oldest_comes_first(results, capsys):
    told = said(capsys, "runs", results)
    rows = [[c.strip() for c in line.split("│")[1:-1]] for line in told.splitlines() if "│" in line]
    assert rows[0][0] == "damaged" and rows[0][-1].startswith("unreadable")
    first, second = [row for row in rows if row[0].startswith("dharma")]
    expected = ["dharma/first", "dharma", "my/model", "accuracy", "0.250", "0.750", "better"]
    assert [word.lower() for word in first] == expected
    assert (second[0], second[-1]) == ("dharma/second", "not finished")


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert "runs.none" in said(capsys, "runs", tmp_path, code=2)
    assert "view.no-report" in said(capsys, "view", tmp_path, code=2)


def test_a_report_is_opened_or_named(results, capsys, monkeypatch):
    opened: list[str] = []
    browser = webbrowser.GenericBrowser("true")
    monkeypatch.setattr(browser, "open", opened.append)
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    run = results / "dharma" / "first"
    assert str(run / "report.html") in said(capsys, "view", run)
    assert opened == [(run / "report.html").as_uri()]

    def none():
        raise webbrowser.Error

    monkeypatch.setattr(webbrowser, "get", none)
    assert str(run / "report.html") in said(capsys, "view", run)
