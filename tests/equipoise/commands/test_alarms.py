"""The alarm while a run trains: once, at its step, also in wandb."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.base import Rollout, Score
from environments.measurement import Mean, measure_means
from equipoise.commands.tracking import Tracker
from equipoise.files.disk import write_json
from equipoise.report.alarms import FEWEST
from equipoise.report.head import alerts
from equipoise.report.run_files import read_run
from equipoise.run.directory import Watched
from equipoise.run.history import append_row
from equipoise.run.job import write_evaluation


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
    rollout, settings = Rollout("p", "p", "test", "Q", "A"), job.config.equipoise.evaluation
    stage = (job.run, "baseline", job.environment, [rollout], [Score(1.0)], settings)
    return write_evaluation(*stage, "tiny", {})


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
