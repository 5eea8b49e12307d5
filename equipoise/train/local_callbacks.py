"""Callbacks around TRL's steps: schedule, history, rollouts, checkpoints, a stop."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from environments.base import Rollout, Score
from equipoise.config.schedule import Schedule
from equipoise.files.disk import flush, write_json
from equipoise.run.history import Row, append_row
from equipoise.run.job import FailureMonitor
from equipoise.run.ledger import Meter
from equipoise.run.rollouts import Choice, Sample, TrainingRollouts
from equipoise.run.seals import CheckpointFolder, find_checkpoints

# --- checkpoints ----------------------------------------------------------------------------------
# The local engine's checkpoints: TRL's folders, each with the run's files so far.


_PREFIX = "checkpoint-"
#: The last file of a whole checkpoint.
_COMPLETE = "complete.json"


def finish_checkpoint(folder: Path, *files: Path) -> None:
    """Add the run's files up to this step and say that everything has been written."""
    for file in files:
        if file.exists():
            shutil.copyfile(file, folder / file.name)
    for path in (*folder.rglob("*"), folder):
        flush(path)
    write_json(folder / _COMPLETE, {})


def latest_checkpoint(folder: Path) -> CheckpointFolder | None:
    """The newest checkpoint that was written to its end; a later half is written over."""
    return next(iter(find_checkpoints(folder, _PREFIX, _COMPLETE)), None)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step}"


# --- callbacks ------------------------------------------------------------------------------------


#: TRL's names for what the history keeps of its own logs.
_TRL_LOGS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "kl": "kl",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated",
}


class HistoryCallback(TrainerCallback):
    """Joins the reward function's row with TRL's logs of the same step, and counts its tokens."""

    def __init__(self, path: Path, on_row: Callable[[Row], None], meter: Meter) -> None:
        self.path = path
        self.on_row = on_row
        self.meter = meter
        self._tokens_before = 0
        self._row: dict[str, float | None] = {}
        self._started = time.perf_counter()

    def record(self, row: Row) -> None:
        """Keep what the reward function measured until TRL logs the step."""
        self._row = dict(row)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the step's clock, and note how many tokens the steps before it had."""
        self._started = time.perf_counter()
        self._tokens_before = state.num_input_tokens_seen

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Write the step's row; TRL's closing summary has no loss and is not a step."""
        if not logs or "loss" not in logs:
            return
        row = self._row | {"step": state.global_step}
        row |= {ours: float(logs[theirs]) for theirs, ours in _TRL_LOGS.items() if theirs in logs}
        row["seconds"] = round(time.perf_counter() - self._started, 3)
        append_row(self.path, row)
        completions = args.per_device_train_batch_size * args.gradient_accumulation_steps
        written = round(logs["completions/mean_length"] * completions)
        self.meter.add_tokens(int(logs["num_tokens"]) - self._tokens_before - written, written)
        self.on_row(row)


class RolloutsCallback(TrainerCallback):
    """Keeps a sample of each step's rollouts, with their scores."""

    def __init__(self, file: TrainingRollouts, choose: Choice) -> None:
        self.file = file
        self.choose = choose
        self._sample: Sample = ()

    def record(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """Choose from what the reward function scored; the step ends later."""
        self._sample = self.choose(rollouts, scores)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the sample, before the checkpoint that holds the step."""
        self.file.append(state.global_step, self._sample)


class ScheduleCallback(TrainerCallback):
    """Puts a resumed run where its configuration's schedule has that step.

    TRL loads the scheduler of the checkpoint, whose length may be another one.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.schedule.go_to(state.global_step)


class CheckpointCallback(TrainerCallback):
    """Ends a checkpoint when the trainer has written all of it, with `files` as they are then."""

    def __init__(self, *files: Path) -> None:
        self.files = files

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Called after the last file of the checkpoint."""
        folder = checkpoint_path(Path(str(args.output_dir)), state.global_step)
        finish_checkpoint(folder, *self.files)


class StopCallback(TrainerCallback):
    """Ends training with a checkpoint when too much failed or the user asked for it."""

    def __init__(self, monitor: FailureMonitor, stop_requested: Callable[[], bool]) -> None:
        self.monitor = monitor
        self.stop_requested = stop_requested

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask the trainer to save and stop."""
        if self.monitor.exceeded or self.stop_requested():
            control.should_save = True
            control.should_training_stop = True
