import logging
import os
import subprocess
import sys
import types

import pytest

from equipoise.config import load_config, parse_flags
from equipoise.tracking import Tracker, wandb_mode


@pytest.fixture
def config():
    options = parse_flags("x", ["logger.wandb_enabled=true", "--wandb-project=trial"])
    return load_config("fairness", options).config


@pytest.fixture(autouse=True)
def no_key(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


class FakeRun:
    def __init__(self) -> None:
        self.logged, self.code = [], None

    def log(self, figures, step) -> None:
        self.logged.append((step, figures))

    def finish(self, exit_code) -> None:
        self.code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    module = types.SimpleNamespace(run=FakeRun(), started=None, Settings=lambda **kw: kw)

    def init(**arguments):
        module.started = arguments
        return module.run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_online_exactly_when_a_key_is_there(monkeypatch, tmp_path) -> None:
    assert wandb_mode() == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_mode() == "online"
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert wandb_mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode() is None


def test_rows_are_sent_as_figures_of_their_step(config, wandb, tmp_path) -> None:
    with Tracker(config, tmp_path, "run-7") as tracker:
        tracker.log({"step": 3, "reward": 0.5, "kl": None})
    assert wandb.started["project"] == "trial"
    assert wandb.started["mode"] == "offline"
    assert (wandb.started["id"], wandb.started["resume"]) == ("run-7", "allow")
    assert wandb.run.logged == [(3, {"train/step": 3, "train/reward": 0.5})]
    assert wandb.run.code == 0


def test_what_trl_asks_wandb_at_each_checkpoint_prints_nothing(tmp_path) -> None:
    lines = [
        "from pathlib import Path",
        "from equipoise.config import load_config, parse_flags",
        "from equipoise.tracking import Tracker",
        "options = parse_flags('x', ['logger.wandb_enabled=true'])",
        "config = load_config('fairness', options).config",
        f"with Tracker(config, Path({str(tmp_path)!r}), 'run-7') as tracker:",
        "    import wandb",
        "    assert wandb.run.url is None",
    ]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    environment.pop("WANDB_SILENT", None)
    command = [sys.executable, "-c", "\n".join(lines)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout + result.stderr == ""


def test_a_failing_run_is_finished_as_failed(config, wandb, tmp_path) -> None:
    with pytest.raises(RuntimeError), Tracker(config, tmp_path, "run-7"):
        raise RuntimeError
    assert wandb.run.code == 1


def test_trouble_with_wandb_is_a_warning(config, wandb, tmp_path, caplog, monkeypatch) -> None:
    def broken(**arguments):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(wandb, "init", broken)
    with caplog.at_level(logging.WARNING), Tracker(config, tmp_path, "run-7") as tracker:
        tracker.log({"step": 1, "reward": 1.0})
    assert "no route to host" in caplog.text


def test_switched_off_it_is_not_even_imported(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    options = parse_flags("x", ["--no-wandb"])
    with Tracker(load_config("fairness", options).config, tmp_path, "run-7") as tracker:
        tracker.log({"step": 1, "reward": 1.0})
