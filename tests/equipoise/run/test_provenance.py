"""The provenance of a run: the checkout that it was started from, and its ledger."""

import subprocess
from pathlib import Path

import pytest

from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.run import ledger
from equipoise.run.ledger import Ledger, Provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit in the place of ours."""
    monkeypatch.setattr(ledger, "_ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "notes.txt").write_bytes(b"caf\xe9\nsame\n")
    git(tmp_path, "add", ".")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    git(tmp_path, *who, "commit", "-q", "-m", "first")
    return tmp_path


def git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    return done.stdout


@pytest.mark.parametrize("settings", [{}, {"color.ui": "always", "diff.external": "false"}])
def test_a_file_that_is_not_utf_8_can_be_put_back_from_the_diff(
    checkout: Path, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        git(checkout, "config", name, value)
    changed = b"th\xe9\xff\nsame\n"
    (checkout / "notes.txt").write_bytes(changed)
    assert ledger.git_state().dirty
    diff = ledger.code_diff()
    git(checkout, "checkout", "-q", ".")
    (checkout / "x.diff").write_bytes(diff)
    git(checkout, "apply", "x.diff")
    assert (checkout / "notes.txt").read_bytes() == changed


def test_a_key_on_the_command_line_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger.sys, "argv", ["x.py", "url=http://me:hunter2@host"])
    about = ledger.describe_run(load_config("fairness", parse_flags("x", [])), "r")
    assert about.command == ("python", "x.py", "url=http://***@host")


def test_the_change_of_another_ledger_is_read_and_kept(tmp_path: Path) -> None:
    first, second = (Ledger(tmp_path / "provenance.json") for _ in range(2))
    first.create(Provenance(task="any"))
    assert second.read().task == "any"
    first.update(seconds={"baseline": 1.0}, seed=1)
    second.update(seconds={"final": 2.0})
    first.update(device="cpu", seed=2)
    assert second.read() == Provenance(
        task="any", seconds={"baseline": 1.0, "final": 2.0}, device="cpu", seed=2
    )
