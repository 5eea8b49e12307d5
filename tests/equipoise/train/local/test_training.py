"""The training stage around TRL's trainer, which is a stand-in here."""

from dataclasses import replace
from types import SimpleNamespace

from equipoise.files.disk import write_json
from equipoise.report.head import alerts
from equipoise.report.run_files import read_run
from equipoise.run.history import append_row
from equipoise.train.local import training


class Tracker:
    def __init__(self):
        self.steps, self.alerts = [], []

    def log(self, row):
        self.steps.append(row["step"])

    def alert(self, text):
        self.alerts.append(text)


def test_an_alarm_of_a_step_reaches_terminal_tracker_and_report(job, monkeypatch, capsys):
    job = replace(job, tracker=Tracker())
    watched = {"metric": "accuracy", "better": "higher"}
    write_json(job.run.evaluation("baseline"), {"watched": watched})

    def trainer(model, job, loaded, monitor, history, *_):
        def train(resume_from_checkpoint):
            for step in range(1, 10):
                row = {"step": step, "reward": float(step), "env/accuracy": -float(step)}
                append_row(history.path, row)
                history.on_row(row)

        return SimpleNamespace(train=train, state=SimpleNamespace(global_step=9), model="trained")

    monkeypatch.setattr(training, "_trainer", trainer)
    assert training._grpo(job, None, None, 9, None) == "trained"
    assert job.tracker.steps == list(range(1, 10))
    (alert,) = job.tracker.alerts
    assert alert.startswith("Step 8: ")
    assert "the reward rose and accuracy" in "".join(capsys.readouterr())
    assert alert in [shown.text for shown in alerts(read_run(job.run.root))]
