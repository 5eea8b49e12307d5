"""Manifests for runs that tests make or change by hand."""

from pathlib import Path

from equipoise.files.disk import read_json
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance
from equipoise.run.seals import MANIFEST, seal


def seal_run(root: Path) -> None:
    """List all of a run as it is now, as if the run had written it so."""
    run = RunDirectory(root)
    content = read_json(run.provenance) if run.provenance.exists() else {}
    run.ledger.create(Provenance.model_validate(content))
    (root / MANIFEST).unlink(missing_ok=True)
    seal(run)
