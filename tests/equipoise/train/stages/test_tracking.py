import json
import logging
import os
import struct
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2

from data_prep.files import write_json, write_jsonl
from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.report.run_files import read_run
from equipoise.run.directory import RunDirectory
from equipoise.train.stages.tracking import Tracker, summary, wandb_mode

PROMPT = "a question that nobody else may read"
ROWS = [
    {"prompt_id": f"p{i}", "set_id": "s", "split": "test", "metadata": {}, "prompt": PROMPT}
    for i in range(3)
]


# --- what wandb has written ----------------------------------------------------------------------

# A .wandb file is LevelDB's log of wandb's own messages; the library has no reader for it.
_HEADER, _BLOCK, _FULL, _LAST = 7, 32768, 1, 4


def read_records(path: Path) -> Iterator[Any]:
    """The records in their order; a long one lies in several chunks."""
    data, at, held = path.read_bytes(), _HEADER, b""
    while len(data) - at >= _HEADER:
        left = _BLOCK - at % _BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, at) if left >= _HEADER else (0, 0, 0)
        if not kind:  # the rest of the block is padding
            at += left
            continue
        if at + _HEADER + length > len(data):  # it is being written
            return
        held += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_FULL, _LAST):
            yield wandb_internal_pb2.Record.FromString(held)
            held = b""


def whole_file(folder: Path) -> list[Any]:
    """The records of a finished run; wandb's own process may still write the last ones."""
    (path,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 60
    while True:
        records = list(read_records(path))
        if any(record.HasField("exit") for record in records):
            return records
        assert time.monotonic() < deadline, f"{path} never ends"
        time.sleep(0.05)


class OfflineRun:
    """What one start of wandb has written in a run's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        records = whole_file(folder)
        (self.run,) = (r.run for r in records if r.HasField("run"))
        self.config = {u.key: json.loads(u.value_json) for u in self.run.config.update}
        self.history = [_items(r.history.item) for r in records if r.HasField("history")]
        self.summary: dict[str, Any] = {}
        for record in records:
            if record.HasField("summary"):
                self.summary |= _items(record.summary.update)
        self.alerts = [r.alert.text for r in records if r.HasField("alert")]
        self.exit_codes = [r.exit.exit_code for r in records if r.HasField("exit")]

    def everything(self) -> bytes:
        """All bytes of all files."""
        return b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())


def offline_runs(root: Path) -> list[OfflineRun]:
    """The starts of wandb in a run directory, the earliest first."""
    return [OfflineRun(folder) for folder in sorted(root.glob("wandb/offline-run-*"))]


def _items(items: Any) -> dict[str, Any]:
    return {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}


# --- tests ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_key(monkeypatch, tmp_path):
    for name in ("API_KEY", "MODE", "PROJECT", "ENTITY", "NAME", "RUN_ID"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.ledger.create({"run_id": "run7", "usage": {"seconds": 12.5, "calls": {}}})
    return run


def loaded(*words, task="fairness"):
    return load_config(task, parse_flags("x", ["logger.wandb_enabled=true", *words]))


def evaluate(run, stage, accuracy, reply):
    metric = {"value": accuracy, "low": None, "high": None}
    write_json(run.evaluation(stage), {"metrics": {"accuracy": metric}, "n_failed": 0})
    score = {"completion": reply, "value": accuracy, "components": {}, "error": None}
    write_jsonl(run.rollouts(stage), [{**row, **score, "evidence": {}} for row in ROWS])


def finish(run):
    evaluate(run, "baseline", 0.25, "before it learned")
    evaluate(run, "final", 0.75, "after it learned")
    row = {"difference": 0.5, "p_holm": 0.01, "verdict": "better"}
    guard = {"difference": None, "p_holm": None, "verdict": "worse", "guard": "lost"}
    write_json(run.comparison, {"metrics": {"accuracy": row, "slope": guard}})


def test_online_exactly_when_a_key_is_there(monkeypatch, tmp_path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert wandb_mode() == "offline"
    (home / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (home / ".netrc").chmod(0o600)
    assert wandb_mode() == "online"
    (home / ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert wandb_mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode() is None


class TestTheRealLibraryOffline:
    """What lies in the files that `wandb sync` would send."""

    def test_a_run_and_its_resumption_are_one_run(self, run, monkeypatch) -> None:
        monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")
        config = loaded("--wandb-project=trial", "policy.model_name=models/sk-0123456789")
        with pytest.raises(RuntimeError), Tracker(config, run) as tracker:
            evaluate(run, "baseline", 0.25, "before it learned")
            tracker.log({"step": 3, "reward": 0.5, "kl": None})
            raise RuntimeError
        finish(run)
        with Tracker(config, run) as tracker:
            tracker.log({"step": 4, "reward": 0.75})
            tracker.alert("Step 8")
        first, second = offline_runs(run.root)
        assert {(r.run.run_id, r.run.project, r.run.display_name) for r in (first, second)} == {
            ("run7", "trial", "run")
        }
        assert (first.exit_codes, second.exit_codes) == ([1], [0])
        assert (first.history[0]["_step"], first.history[0]["train/reward"]) == (3, 0.5)
        assert second.history[0]["_step"] == 4
        assert (first.alerts, second.alerts) == ([], ["Step 8"])
        assert first.summary["baseline/accuracy"] == 0.25
        assert "final/accuracy" not in first.summary
        expected = dict(
            [
                *(("baseline/accuracy", 0.25), ("final/accuracy", 0.75), ("change/accuracy", 0.5)),
                *(("p_holm/accuracy", 0.01), ("verdict/accuracy", "better")),
                *(("verdict/slope", "worse"), ("guard/slope", "lost")),
                *(("final/failed", 0), ("usage/seconds", 12.5)),
            ]
        )
        assert {name: second.summary[name] for name in expected} == expected
        assert second.config["grpo"]["num_generations_per_prompt"] == 16
        assert second.config["policy"]["model_name"] == "models/***"
        assert second.config["equipoise"]["task"] == "fairness"

    def test_prompts_and_replies_stay_at_home(self, run) -> None:
        finish(run)
        with Tracker(loaded(), run):
            pass
        (tracked,) = offline_runs(run.root)
        assert tracked.summary["final/accuracy"] == 0.75
        assert PROMPT.encode() not in tracked.everything()


class FakeRun:
    def __init__(self) -> None:
        self.logged, self.code, self.summary, self.alerts = [], None, {}, []

    def log(self, figures, step=None) -> None:
        self.logged.append((step, figures))

    def alert(self, title, text) -> None:
        self.alerts.append(f"{title}: {text}")

    def finish(self, exit_code) -> None:
        self.code = exit_code


@pytest.fixture
def fake(monkeypatch):
    module = types.SimpleNamespace(run=FakeRun(), Settings=lambda **kw: kw)
    module.init = lambda **arguments: module.run
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_where_nemo_rl_trains_its_own_run_gets_the_result(fake, run) -> None:
    finish(run)
    config = types.SimpleNamespace(engine="nemo_rl", config=loaded().config)
    fake.init = None
    with Tracker(config, run):
        pass
    assert fake.run.summary["verdict/accuracy"] == "better"
    assert fake.run.code is None  # NeMo-RL finishes it
    fake.run = None
    with Tracker(config, run):
        pass


def test_an_alert_reaches_the_run_of_either_engine(fake, run) -> None:
    of_nemo_rl = types.SimpleNamespace(engine="nemo_rl", config=loaded().config)
    for config in (loaded(), of_nemo_rl):
        Tracker(config, run).alert("Step 8")
    assert fake.run.alerts == ["The reward rises alone: Step 8"] * 2


@pytest.mark.parametrize("named", ["accuracy", None])
def test_the_objective_has_one_name_whatever_the_task(run, named) -> None:
    """A metric that the environment names, else the mean reward, which the probe has."""
    finish(run)
    if named:
        for stage in ("baseline", "final"):
            content = json.loads(run.evaluation(stage).read_text())
            write_json(run.evaluation(stage), content | {"objective": named})
    untrained = {"metrics": {"reward": {"value": -1.5}}}
    trained = {"reward": {"value": 2.5}}
    write_json(run.modes, {"trivial": {"policies": {"untrained": untrained}, "trained": trained}})
    told = dict(summary(read_run(run.root)))
    assert told["objective"] == (named or "reward")
    values = (told["baseline/objective"], told["final/objective"])
    assert values == ((0.25, 0.75) if named else (-1.5, 2.5))


def test_what_trl_asks_wandb_at_each_checkpoint_prints_nothing(run) -> None:
    """In a process of its own, for wandb reads its variables once."""
    lines = [
        "from pathlib import Path",
        "from equipoise.config import load_config",
        "from equipoise.config.training_words import parse_flags",
        "from equipoise.run.directory import RunDirectory",
        "from equipoise.train.stages.tracking import Tracker",
        "options = parse_flags('x', ['logger.wandb_enabled=true'])",
        f"run = RunDirectory(Path({str(run.root)!r}))",
        "with Tracker(load_config('fairness', options), run) as tracker:",
        "    tracker.log({'step': 1, 'reward': 1.0})",
        "    import wandb",
        "    assert wandb.run.url is None",
    ]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    environment.pop("WANDB_SILENT", None)
    command = [sys.executable, "-c", "\n".join(lines)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout + result.stderr == ""


def test_trouble_with_wandb_is_one_warning(fake, run, caplog, monkeypatch) -> None:
    def broken(**arguments):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(fake, "init", broken)
    finish(run)
    with caplog.at_level(logging.WARNING), Tracker(loaded(), run) as tracker:
        tracker.log({"step": 1, "reward": 1.0})
        tracker.log({"step": 2, "reward": 1.0})
    assert caplog.text.count("no route to host") == 1


def test_a_run_of_which_nothing_is_known_does_not_start_it(fake, run) -> None:
    with Tracker(loaded(), run):
        pass
    assert fake.run.code is None


def test_switched_off_it_is_not_even_imported(monkeypatch, run) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    finish(run)
    with Tracker(load_config("fairness", parse_flags("x", ["--no-wandb"])), run) as tracker:
        tracker.log({"step": 1, "reward": 1.0})


class TestWandbsVariables:
    """They are read once: config.yaml has what they said."""

    def test_name_the_run_unless_the_user_does(self, monkeypatch) -> None:
        for name in ("project", "entity", "name"):
            monkeypatch.setenv(f"WANDB_{name.upper()}", f"my-{name}")
        wandb = loaded("--wandb-project=chosen").config.logger.wandb
        assert (wandb.project, wandb.entity, wandb.name) == ("chosen", "my-entity", "my-name")
        assert loaded().config.logger.wandb.project == "my-project"

    def test_a_yaml_of_the_users_or_of_a_resumed_run_comes_first(
        self, monkeypatch, tmp_path
    ) -> None:
        mine = tmp_path / "mine.yaml"
        mine.write_text(json.dumps({"logger": {"wandb": {"project": "of the file"}}}))
        monkeypatch.setenv("WANDB_PROJECT", "of the environment")
        found = loaded("--config", str(mine)).config.logger.wandb.project
        assert found == "of the file"

    def test_an_empty_one_is_none(self, monkeypatch) -> None:
        monkeypatch.setenv("WANDB_PROJECT", "")
        assert loaded().config.logger.wandb.project == "equipoise"
