"""What a run keeps of its environment's sources."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_prep.files import read_json, write_json
from equipoise.errors import EquipoiseError
from equipoise.job import keep_sources
from equipoise.run_directory import RunDirectory


def job(root: Path, sources: dict[str, str] | None) -> Any:
    environment = SimpleNamespace() if sources is None else SimpleNamespace(sources=lambda: sources)
    return SimpleNamespace(run=RunDirectory(root), environment=environment)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_json(RunDirectory(tmp_path).provenance, {"task": "any"})
    return tmp_path


def test_sources_are_kept_and_may_stay_as_they_are(root: Path) -> None:
    keep_sources(job(root, {"policy/tables.rego": "sha256:1"}))
    keep_sources(job(root, {"policy/tables.rego": "sha256:1"}))
    kept = read_json(RunDirectory(root).provenance)
    assert kept == {"task": "any", "sources": {"policy/tables.rego": "sha256:1"}}


@pytest.mark.parametrize("now", [{"judge": "b"}, {}, {"judge": "a", "policy": "p"}], ids=str)
def test_a_run_does_not_go_on_with_another_reward(root: Path, now: dict[str, str]) -> None:
    keep_sources(job(root, {"judge": "a"}))
    with pytest.raises(EquipoiseError, match=r"since this run began, (judge|policy) changed"):
        keep_sources(job(root, now))
    assert read_json(RunDirectory(root).provenance)["sources"] == {"judge": "a"}


def test_an_environment_of_code_alone_has_none(root: Path) -> None:
    keep_sources(job(root, None))
    assert read_json(RunDirectory(root).provenance) == {"task": "any"}
