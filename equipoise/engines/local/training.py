"""The training stage of the local engine: TRL's trainer, watched, stopped and resumed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from transformers import TrainerCallback, set_seed
from trl import GRPOTrainer

from data_prep.files import write_folder
from environments.base import TRAIN_SPLIT
from equipoise.config.schedule import total_steps
from equipoise.engines.local.callbacks import CheckpointCallback, HistoryCallback, StopCallback
from equipoise.engines.local.checkpoints import latest_checkpoint
from equipoise.engines.local.generation import render_prompt
from equipoise.engines.local.reward import reward_function
from equipoise.engines.local.trainer import build_trainer
from equipoise.models.causal import LoadedModel
from equipoise.run.history import Row, restore
from equipoise.run.kept_files import keep_files
from equipoise.run.ownership import confirm_owner
from equipoise.stages.failures import FailureMonitor
from equipoise.stages.job import Job
from equipoise.terminal.console import StepPrinter
from equipoise.terminal.interrupts import Stopped, deferring

_STOPPING = "stopping after this step, with a checkpoint; again to stop at once"


def train(job: Job, loaded: LoadedModel) -> None:
    """GRPO through TRL, resumed from the newest whole checkpoint, then the final checkpoint."""
    config, run = job.config, job.run
    steps = total_steps(len(job.split(TRAIN_SPLIT)), config)
    checkpoint = latest_checkpoint(run.checkpoints, job.reporter.warn)
    done = checkpoint.step if checkpoint else 0
    restore(run.history, checkpoint.path / run.history.name if checkpoint else None)
    job.reporter.heading(f"GRPO training, {steps} steps")
    monitor = FailureMonitor(config.equipoise.max_failure_rate, config.equipoise.failure_window)
    with (
        job.timed("training"),
        deferring(lambda: job.reporter.warn(_STOPPING)) as stop,
        _watching(job, steps, done) as on_row,
    ):
        history = HistoryCallback(run.history, on_row, job.meter)
        callbacks = [
            StopCallback(monitor, stop, partial(confirm_owner, run.root)),
            history,
            CheckpointCallback(run.history),
        ]
        set_seed(config.grpo.seed)
        trainer = _trainer(job, loaded, monitor, history, callbacks)
        set_seed(config.grpo.seed)
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    if monitor.exceeded:
        raise monitor.error()
    if trainer.state.global_step < steps:
        raise Stopped
    write_folder(run.final_checkpoint, lambda folder: _save(trainer.model, loaded, folder))
    keep_files(run, run.final_checkpoint, run.history)


@contextmanager
def _watching(job: Job, steps: int, done: int) -> Iterator[Callable[[Row], None]]:
    """Yields what shows a step to the user and to the tracker."""
    printer = StepPrinter(job.reporter, steps, done)
    with job.reporter.progress("training", steps, done) as bar:

        def on_row(row: Row) -> None:
            printer(row)
            job.tracker.log(row)
            bar(int(row["step"] or 0))

        yield on_row


def _trainer(
    job: Job,
    loaded: LoadedModel,
    monitor: FailureMonitor,
    history: HistoryCallback,
    callbacks: Sequence[TrainerCallback],
) -> GRPOTrainer:
    records = job.split(TRAIN_SPLIT)
    prompts = [render_prompt(loaded.tokenizer, record) for record in records]
    reward = reward_function(job.environment, records, prompts, monitor, history.record)
    return build_trainer(loaded, records, reward, job.config, job.run.checkpoints, callbacks)


def _save(model: torch.nn.Module, loaded: LoadedModel, folder: Path) -> None:
    model.save_pretrained(folder)  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(folder)
