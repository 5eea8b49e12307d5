"""Manifests for runs that tests make or change by hand."""

from pathlib import Path

from equipoise.files.disk import read_json
from equipoise.run.directory import RunDirectory
from equipoise.run.seals import MANIFEST, PARTS, record_files


def seal_run(root: Path) -> None:
    """List all of a run as it is now, as if the run had written it so."""
    run = RunDirectory(root)
    run.ledger.create(read_json(run.provenance) if run.provenance.exists() else {})
    (root / MANIFEST).unlink(missing_ok=True)
    record_files(run, *(path for path in root.iterdir() if path.name in PARTS))
