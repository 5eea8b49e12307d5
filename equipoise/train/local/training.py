"""The training stage of the local engine: TRL's trainer, watched, stopped and resumed."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, TrainerCallback, set_seed
from trl import GRPOTrainer

from environments.base import TRAIN_SPLIT
from equipoise.config.schedule import total_steps
from equipoise.files.disk import write_folder
from equipoise.files.exits import Stopped, deferring
from equipoise.models.causal import LoadedModel
from equipoise.run.history import restore
from equipoise.run.job import FailureMonitor, Job, Watch, begin_training
from equipoise.run.rollouts import TrainingRollouts, choose
from equipoise.run.seals import CheckpointFolder, seal
from equipoise.train.local.callbacks import (
    CheckpointCallback,
    HistoryCallback,
    RolloutsCallback,
    StopCallback,
    latest_checkpoint,
)
from equipoise.train.local.trainer import build_trainer, reward_function, trainable

_LOG = logging.getLogger(__name__)


def train(job: Job, loaded: LoadedModel, watch: Watch) -> None:
    """Train with TRL from the newest whole checkpoint, and save the final one."""
    config, run = job.config, job.run
    steps = total_steps(len(job.split(TRAIN_SPLIT)), config)
    begin_training(job, steps)
    checkpoint = latest_checkpoint(run.checkpoints)
    restore(run.history, checkpoint.path / run.history.name if checkpoint else None)
    restore(run.training, checkpoint.path / run.training.name if checkpoint else None)
    set_seed(config.grpo.seed)
    model = _grpo(job, watch, trainable(loaded, config), loaded, steps, checkpoint)

    def save(folder: Path) -> None:
        model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)

    write_folder(run.final_checkpoint, save)
    seal(run, run.final_checkpoint, run.history, run.training.parent)


def _grpo(
    job: Job,
    watch: Watch,
    model: PreTrainedModel | PeftModel,
    loaded: LoadedModel,
    steps: int,
    checkpoint: CheckpointFolder | None,
) -> PreTrainedModel | PeftModel:
    """The model after its last step. Raises `Stopped` where it was stopped before."""
    config, run = job.config, job.run
    monitor = FailureMonitor(config.equipoise.max_failure_rate, config.equipoise.failure_window)
    with (
        job.timed("training"),
        deferring(_LOG.warning) as stop,
        watch(steps, checkpoint.step if checkpoint else 0) as on_row,
    ):
        history = HistoryCallback(run.history, on_row, job.meter)
        kept = config.equipoise.training_rollouts
        rollouts = RolloutsCallback(
            TrainingRollouts(run.training, kept.steps, steps),
            partial(choose, limit=kept.sets, seed=config.grpo.seed),
        )
        callbacks = [
            StopCallback(monitor, stop),
            history,
            rollouts,
            CheckpointCallback(run.history, run.training),
        ]
        trainer = _trainer(model, job, loaded, monitor, history, rollouts, callbacks)
        set_seed(config.grpo.seed)
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    if monitor.exceeded:
        raise monitor.error()
    if trainer.state.global_step < steps:
        raise Stopped
    return trainer.model


def _trainer(
    model: PreTrainedModel | PeftModel,
    job: Job,
    loaded: LoadedModel,
    monitor: FailureMonitor,
    history: HistoryCallback,
    rollouts: RolloutsCallback,
    callbacks: Sequence[TrainerCallback],
) -> GRPOTrainer:
    records = job.split(TRAIN_SPLIT)
    reward = reward_function(job.environment, records, monitor, history.record, rollouts.record)
    return build_trainer(model, loaded, records, reward, job.config, job.run.checkpoints, callbacks)
