"""What a run that was scored again says of what was not."""

from pathlib import Path

from equipoise.audit.rescore import left_out
from equipoise.report.head import run_notes
from equipoise.report.run_files import read_run
from equipoise.run.directory import RunDirectory
from tests.equipoise.report.conftest import write_finished, write_json


def test_what_keeps_the_old_scores_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert left_out(run) == []
    run.training.parent.mkdir(parents=True)
    run.modes.write_text("{}")
    assert left_out(run) == ["modes.json", "training"]


def test_the_report_of_new_scores_says_what_is_of_the_old_ones(tmp_path: Path) -> None:
    run = write_finished(tmp_path / "run")
    before = run_notes(read_run(run, replies=False))
    told = {"of": "x", "time": "now", "left_out": ["probe", "modes.json"]}
    write_json(run / "provenance.json", {"rescored": told})
    notes = " ".join(run_notes(read_run(run, replies=False)))
    assert "The curves of training are of the old scores" in notes
    assert "probe, modes.json of the first run are of the old scores too" in notes
    assert not any("old scores" in note for note in before)
