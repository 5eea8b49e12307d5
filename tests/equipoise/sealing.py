"""Seals for runs that tests make or change by hand."""

from pathlib import Path

from data_prep.files import read_json
from equipoise.run.directory import RunDirectory
from equipoise.run.seals import PARTS, record_files


def seal_run(root: Path) -> None:
    """Seal all of a run as it is now, as if the run had written it so."""
    run = RunDirectory(root)
    content = read_json(run.provenance) if run.provenance.exists() else {}
    known = {key: value for key, value in content.items() if key != "sha256"}
    run.ledger.create(known | {"files": {}})
    record_files(run, *(path for path in root.iterdir() if path.name in PARTS))
