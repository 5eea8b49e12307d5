"""The gate in a run's report."""

from pathlib import Path

import pytest

from data_prep.files import write_json
from equipoise.report.head import gate_alerts, gate_sections
from equipoise.report.renderers import page
from equipoise.report.report import run_document
from equipoise.report.run_files import RunFiles, read_run

METRIC = {
    "label": "<script>reward</script>",
    "before": 0.5,
    "after": 0.4,
    "change": -0.2,
    "low": -0.25,
    "high": -0.1,
    "margin": {"by": 0.02, "relative": True, "better": "higher"},
    "status": "lost",
    "reason": "p 0.001 after Holm's correction",
}
GATE = {
    "verdict": "failed",
    "summary": "1 lost",
    "confidence": 0.95,
    "missing": {"rag": "after"},
    "tasks": {"dharma": {"metrics": {"reward": METRIC}}},
}


def test_a_verdict_is_a_section_and_a_loss_an_alert(tmp_path: Path) -> None:
    write_json(tmp_path / "gate" / "gate.json", GATE)
    run = read_run(tmp_path)
    (section,) = gate_sections(run)
    metric, missing = section.tables[0][1].rows
    texts = [cell.text.replace("\N{MINUS SIGN}", "-") for cell in metric]
    assert texts[2:] == ["0.500", "0.400", "-20.0%", "a fall of 2%, or any rise", "lost"]
    assert metric[4].interval.replace("\N{MINUS SIGN}", "-") == "-25% to -10.0%"
    assert metric[-1].note == METRIC["reason"]
    assert [missing[0].text, missing[-1].text] == ["rag", "not evaluated"]
    (alert,) = gate_alerts(run)
    assert "fails the gate: 1 lost" in alert.text and alert.section == section.anchor
    html = page(run_document(run))
    assert "Gate: failed" in html and "<script>reward" not in html


def test_a_run_that_was_not_gated_has_neither() -> None:
    assert not gate_sections(RunFiles()) and not list(gate_alerts(RunFiles()))


@pytest.mark.parametrize("gate", [{"verdict": 3}, {"tasks": [1]}, {"tasks": {"a": {"metrics": 1}}}])
def test_another_content_of_the_file_is_no_error(gate: dict) -> None:
    assert gate_sections(RunFiles(gate=gate))
