"""Callbacks at the end of a step request a stop and keep the step's rollouts."""

from functools import partial
from pathlib import Path

from transformers import TrainerControl, TrainerState, TrainingArguments

from environments.base import Rollout, Score
from equipoise.run.job import FailureMonitor
from equipoise.run.rollouts import TrainingRollouts, choose, read_kept
from equipoise.train.local_callbacks import (
    CheckpointCallback,
    RolloutsCallback,
    StopCallback,
)


def end_step(root: Path, *, stop: bool) -> TrainerControl:
    control = TrainerControl()
    callback = StopCallback(FailureMonitor(0.1, 5), lambda: stop)
    callback.on_step_end(TrainingArguments(str(root), use_cpu=True), TrainerState(), control)
    return control


def test_a_request_saves_and_stops(tmp_path: Path):
    assert not end_step(tmp_path, stop=False).should_save
    control = end_step(tmp_path, stop=True)
    assert (control.should_save, control.should_training_stop) == (True, True)


def test_a_checkpoint_holds_the_rollouts_of_its_own_step(tmp_path: Path):
    file = TrainingRollouts(tmp_path / "run" / "rollouts.jsonl", limit=9, steps=9)
    callback = RolloutsCallback(file, partial(choose, limit=1, seed=7))
    sealing = CheckpointCallback(file.path, tmp_path / "none.csv")
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    for step in (1, 2):
        rollout = Rollout("p", "s", "train", "Q", f"reply {step}")
        callback.record([rollout], [Score(1.0)])
        state = TrainerState(global_step=step)
        callback.on_step_end(arguments, state, TrainerControl())
        (tmp_path / f"checkpoint-{step}").mkdir()
        sealing.on_save(arguments, state, TrainerControl())
    kept = [read_kept(tmp_path / f"checkpoint-{step}" / "rollouts.jsonl") for step in (1, 2)]
    assert [[rollout.completion for _, rollout, _ in each] for each in kept] == [
        ["reply 1"],
        ["reply 1", "reply 2"],
    ]
