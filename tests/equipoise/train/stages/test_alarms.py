"""The alarm while a run trains: once, at its step, also in wandb."""

from dataclasses import replace

import pytest

from data_prep.files import write_json
from equipoise.run.history import append_row
from equipoise.statistics.alarms import FEWEST
from equipoise.train.stages.alarms import watching_steps


class Alerts:
    def __init__(self):
        self.texts = []

    def alert(self, text):
        self.texts.append(text)


@pytest.fixture
def tracked(job):
    return replace(job, tracker=Alerts())


def take(job, steps, accuracy):
    """Rows whose reward rises."""
    with watching_steps(job, 20, 0) as on_row:
        for step in steps:
            row = {"step": step, "reward": float(step), "env/accuracy": accuracy(step)}
            append_row(job.run.history, row)
            on_row(row)


def baseline(job, **content):
    write_json(
        job.run.evaluation("baseline"),
        {"metrics": {"accuracy": {"value": 0.5}, "other": {}}, **content},
    )


def test_it_is_told_once_and_not_again_by_a_run_that_goes_on(tracked, capsys):
    baseline(tracked, better={"accuracy": "higher"})
    take(tracked, range(1, FEWEST), lambda step: -step)
    assert tracked.tracker.texts == []
    take(tracked, range(FEWEST, FEWEST + 3), lambda step: -step)
    (text,) = tracked.tracker.texts
    assert text.startswith(f"Step {FEWEST}: over {FEWEST} steps the reward rose and accuracy did")
    assert "".join(capsys.readouterr()).count("the reward rose and") == 1


@pytest.mark.parametrize(
    ("content", "accuracy"),
    [
        ({"better": {"accuracy": "higher"}}, lambda step: step),
        ({"better": {"accuracy": "lower"}}, lambda step: -step),
        ({"better": {"other": "higher"}}, lambda step: -step),  # no direction is the better one
        ({"better": ["accuracy"]}, lambda step: -step),
        ({}, lambda step: -step),  # a run that began before directions were written
        ({"better": {"other": "higher"}, "objective": "other"}, lambda step: -step),
    ],
)
def test_it_is_silent(tracked, content, accuracy):
    baseline(tracked, **content)
    take(tracked, range(1, 15), accuracy)
    assert tracked.tracker.texts == []
