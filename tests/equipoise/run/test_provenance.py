"""What is kept of the checkout that a run was started from."""

import subprocess
from pathlib import Path

import pytest

from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.run import ledger


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


def test_a_clean_checkout_has_no_diff(checkout: Path) -> None:
    assert ledger.code_diff() == b""
    commit = git(checkout, "rev-parse", "HEAD").decode().strip()
    assert ledger.git_state() == ledger.GitState(commit=commit)


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


def test_outside_a_checkout_there_is_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ledger, "_ROOT", tmp_path)
    assert ledger.git_state() == ledger.GitState()
    assert ledger.code_diff() == b""


def test_a_key_on_the_command_line_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger.sys, "argv", ["x.py", "url=http://me:hunter2@host"])
    about = ledger.describe_run(load_config("fairness", parse_flags("x", [])), "r")
    assert about.command == ("python", "x.py", "url=http://***@host")
