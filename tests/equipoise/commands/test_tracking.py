"""A run is watched: wandb gets its steps and its result, and the alarm is told once."""

import json
import logging
import sys
import time
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.base import Rollout
from environments.measurement import Mean, measure_means
from equipoise.commands.tracking import Tracker, summary, wandb_mode
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.disk import write_json, write_jsonl
from equipoise.report.alarms import FEWEST
from equipoise.report.head import alerts
from equipoise.report.run_files import read_run
from equipoise.run import job as at_work
from equipoise.run.directory import Evaluation, RunDirectory, Watched, read_content
from equipoise.run.history import append_row
from equipoise.run.ledger import Provenance, Usage

PROMPT = "a question that nobody else may read"
ROWS = [
    {"prompt_id": f"p{i}", "set_id": "s", "split": "test", "metadata": {}, "prompt": PROMPT}
    for i in range(3)
]


@pytest.fixture(autouse=True)
def no_key(monkeypatch, tmp_path):
    for name in ("API_KEY", "MODE", "PROJECT", "ENTITY", "NAME", "RUN_ID"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.ledger.create(Provenance(run_id="run7", usage=Usage(seconds=12.5, calls={})))
    return run


def loaded(*words, task="fairness"):
    return load_config(task, parse_flags("x", ["logger.wandb_enabled=true", *words]))


def evaluate(run, stage, accuracy, reply):
    metric = {"value": accuracy, "low": None, "high": None}
    write_json(run.evaluation(stage), {"metrics": {"accuracy": metric}, "n_failed": 0})
    score = {"completion": reply, "value": accuracy, "components": {}, "error": None}
    write_jsonl(
        run.rollouts(stage), [{**row, **score, "evidence": {}, "outcome": None} for row in ROWS]
    )


def finish(run):
    evaluate(run, "baseline", 0.25, "before it learned")
    evaluate(run, "final", 0.75, "after it learned")
    row = {"difference": 0.5, "p_holm": 0.01, "verdict": "better"}
    guard = {"difference": None, "p_holm": None, "verdict": "worse", "guard": "not preserved"}
    write_json(run.comparison, {"metrics": {"accuracy": row, "slope": guard}})


def test_online_exactly_when_a_key_is_there(monkeypatch, tmp_path):
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


def test_of_the_real_library_two_starts_are_one_run_that_holds_no_prompt_and_no_key(
    run, monkeypatch
):
    """Read the files that `wandb sync` would send."""
    monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")
    config = loaded("policy.model_name=models/sk-0123456789")
    with Tracker(config, run) as tracker:
        tracker.log({"step": 3, "reward": 0.5})
    finish(run)
    with Tracker(config, run) as tracker:
        tracker.log({"step": 4, "reward": 0.75})
    folders = list(run.root.glob("wandb/offline-run-*"))
    assert [folder.name.rpartition("-")[2] for folder in folders] == ["run7", "run7"]
    deadline = time.monotonic() + 60  # wandb's own process may still write the last lines
    while b"final/accuracy" not in (written := everything(run.root / "wandb")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert PROMPT.encode() not in written and b"sk-0123456789" not in written


def everything(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


class FakeRun:
    def __init__(self):
        self.logged, self.code, self.summary, self.alerts = [], None, {}, []

    def log(self, figures, step=None):
        self.logged.append((step, figures))

    def alert(self, title, text):
        self.alerts.append(f"{title}: {text}")

    def finish(self, exit_code):
        self.code = exit_code


@pytest.fixture
def fake(monkeypatch):
    module = types.SimpleNamespace(run=FakeRun(), Settings=lambda **kw: kw, asked={})

    def init(**arguments):
        module.asked = arguments
        return module.run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_run_is_told_its_settings_its_steps_and_what_came_of_it(fake, run, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")
    config = loaded("--wandb-project=trial", "policy.model_name=models/sk-0123456789")
    with pytest.raises(RuntimeError), Tracker(config, run) as tracker:
        tracker.log({"step": 3, "reward": 0.5, "kl": None})
        raise RuntimeError
    assert fake.run.logged == [(3, {"train/step": 3, "train/reward": 0.5})]
    assert fake.run.code == 1
    assert "final/accuracy" not in fake.run.summary
    named = {"id": "run7", "resume": "allow", "project": "trial", "name": "run"}
    assert named.items() <= fake.asked.items()
    assert fake.asked["config"]["policy"]["model_name"] == "models/***"
    assert fake.asked["config"]["equipoise"]["task"] == "fairness"
    finish(run)
    with Tracker(config, run):
        pass
    assert fake.run.code == 0
    expected = {
        "baseline/accuracy": 0.25,
        "final/accuracy": 0.75,
        "change/accuracy": 0.5,
        "p_holm/accuracy": 0.01,
        "verdict/accuracy": "better",
        "verdict/slope": "worse",
        "guard/slope": "not preserved",
        "final/failed": 0,
        "usage/seconds": 12.5,
    }
    assert expected.items() <= fake.run.summary.items()


def test_where_nemo_rl_trains_its_own_run_gets_the_result(fake, run):
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


@pytest.mark.parametrize("named", ["accuracy", None])
def test_the_objective_has_one_name_whatever_the_task(run, named):
    """A metric that the environment names, else the mean reward, which the probe has."""
    finish(run)
    if named:
        for stage in ("baseline", "final"):
            content = json.loads(run.evaluation(stage).read_text())
            write_json(run.evaluation(stage), content | {"objective": named})
    untrained = {"metrics": {"reward": {"value": -1.5}}}
    trained = {"reward": {"value": 2.5}}
    write_json(run.modes, {"trivial": {"baselines": {"untrained": untrained}, "trained": trained}})
    told = dict(summary(read_run(run.root)))
    assert told["objective"] == (named or "reward")
    values = (told["baseline/objective"], told["final/objective"])
    assert values == ((0.25, 0.75) if named else (-1.5, 2.5))


def test_trouble_with_wandb_is_one_warning(fake, run, caplog, monkeypatch):
    def broken(**arguments):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(fake, "init", broken)
    finish(run)
    with caplog.at_level(logging.WARNING), Tracker(loaded(), run) as tracker:
        tracker.log({"step": 1, "reward": 1.0})
        tracker.log({"step": 2, "reward": 1.0})
    assert caplog.text.count("no route to host") == 1


def test_switched_off_it_is_not_even_imported(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "wandb", None)
    finish(run)
    with Tracker(load_config("fairness", parse_flags("x", ["--no-wandb"])), run) as tracker:
        tracker.log({"step": 1, "reward": 1.0})


class TestWandbsVariables:
    """They are read once: config.yaml has what they said."""

    def test_name_the_run_unless_the_user_does(self, monkeypatch):
        for name in ("project", "entity", "name"):
            monkeypatch.setenv(f"WANDB_{name.upper()}", f"my-{name}")
        wandb = loaded("--wandb-project=chosen").config.logger.wandb
        assert (wandb.project, wandb.entity, wandb.name) == ("chosen", "my-entity", "my-name")
        assert loaded().config.logger.wandb.project == "my-project"

    def test_a_yaml_of_the_users_or_of_a_resumed_run_comes_first(self, monkeypatch, tmp_path):
        mine = tmp_path / "mine.yaml"
        mine.write_text(json.dumps({"logger": {"wandb": {"project": "of the file"}}}))
        monkeypatch.setenv("WANDB_PROJECT", "of the environment")
        found = loaded("--config", str(mine)).config.logger.wandb.project
        assert found == "of the file"


class Alerts(Tracker):
    def __init__(self, job):
        super().__init__(job.loaded, job.run)
        self.job, self.texts, self.steps = job, [], []

    def alert(self, text):
        self.texts.append(text)

    def log(self, row):
        self.steps.append(row["step"])


@pytest.fixture
def tracked(job):
    return Alerts(job)


def take(tracked, steps, accuracy, reward=float):
    """Rows whose reward rises."""
    job = tracked.job
    with tracked.watching(job, 20, 0) as on_row:
        for step in steps:
            row = {"step": step, "reward": reward(step), "env/accuracy": accuracy(step)}
            append_row(job.run.history, row)
            on_row(row)


def baseline(tracked, **watched):
    write_json(tracked.job.run.evaluation("baseline"), {"watched": watched} if watched else {})


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 4.0, None]), min_size=FEWEST, max_size=30),
    st.integers(0, 12),
    st.sampled_from(["higher", "lower"]),
)
def test_step_by_step_it_says_what_the_report_says_of_the_whole_run(job, drawn, stop, better):
    """Also where the run was stopped on the way and went on."""
    tracked = Alerts(job)
    baseline(tracked, metric="accuracy", better=better)
    job.run.history.unlink(missing_ok=True)
    rows = [(None if figure is None else n - figure, figure) for n, figure in enumerate(drawn)]
    steps = range(1, len(rows) + 1)
    for part in (steps[:stop], steps[stop:]):
        take(tracked, part, lambda step: rows[step - 1][1], lambda step: rows[step - 1][0])
    shown = [alert.text for alert in alerts(read_run(job.run.root)) if alert.section == "training"]
    assert tracked.texts == shown


def written(job, monkeypatch, *names):
    """The evaluation of a reply by metrics of these names."""
    means = {name: Mean([1.0], better="lower") for name in names}
    monkeypatch.setattr(job.environment, "measure", lambda *_: measure_means(["p"], means))
    rollouts = [Rollout("p", "p", "test", "Q", "A")]
    job.environment.set_reference(rollouts)
    at_work.evaluate(job, "baseline", lambda *_: rollouts)
    return read_content(job.run.evaluation("baseline"), Evaluation)


@pytest.mark.parametrize(
    ("named", "objective", "metric"),
    [
        ("second", "third", "second"),
        ("", "third", "third"),
        ("", "reward", "first"),
        ("unknown", "reward", "first"),
    ],
)
def test_the_metric_is_the_tasks_own_else_the_objective_else_the_first(
    job, monkeypatch, named, objective, metric
):
    environment = job.environment
    monkeypatch.setattr(environment, "watched", named, raising=False)
    monkeypatch.setattr(environment, "objective", objective, raising=False)
    evaluation = written(job, monkeypatch, "first", "second", "third")
    assert evaluation.watched == Watched(metric=metric, better="lower")
