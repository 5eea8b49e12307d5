"""History, checkpoints and stop of a run that NeMo-RL trains."""

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.run.directory import RunDirectory
from equipoise.run.history import Row, append_row, keep_steps
from equipoise.run.job import FailureMonitor, Job
from equipoise.run.rollouts import TrainingRollouts
from equipoise.run.seals import CheckpointFolder, find_checkpoints, remove
from equipoise.train.nemo_rl.scoring import StepSummary

_LOG = logging.getLogger(__name__)
#: The mean factor, over a step's tokens, by which training's and vLLM's probabilities differ: 1
#: where they are one policy. A layer that vLLM drops or a wrong kernel need raise nothing else.
_MISMATCH = "token_mult_prob_error"
#: NeMo-RL's names for what the history keeps of its training metrics.
_NEMO_RL_METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "mean_gen_tokens_per_sample": "completion_length",
    "truncation_rate": "truncated",
    _MISMATCH: _MISMATCH,
    "gen_kl_error": "gen_kl_error",
}


def latest_checkpoint(folder: Path) -> CheckpointFolder | None:
    """Find the newest complete checkpoint: NeMo-RL renames a folder when all is written."""
    return next(iter(_checkpoints(folder)), None)


def _checkpoints(folder: Path) -> list[CheckpointFolder]:
    return find_checkpoints(folder, "step_", "training_info.json")


def go_back(run: RunDirectory) -> int:
    """Cut a run back to the checkpoint that NeMo-RL resumes from, and return its step.

    That is the newest that it finds. A kill may come between a checkpoint and its step's row in the
    history: then the checkpoint is removed, and the step is taken again.
    """
    saved = deque(_checkpoints(run.checkpoints))
    while saved and keep_steps(run.history, saved[0].step) < saved[0].step:
        path = saved.popleft().path
        _LOG.warning(f"{path} was saved, and its step's row was not: the step is taken again")
        remove(path)
    done = saved[0].step if saved else 0
    for file in (run.history, run.training):
        keep_steps(file, done)
    return done


@dataclass
class HistoryLogger:
    """NeMo-RL's logger, joined by the environment's metrics; it writes a run's files as steps end.

    NeMo-RL calls it with the dictionaries in which it looks up `checkpointing.metric_name`, so
    metrics are added in place. A stop makes the next checkpoint's step the last one.
    """

    logger: Any  # NeMo-RL's
    environment: Any  # the actor, by plain calls
    checkpointing: dict[str, Any]  # of the configuration that NeMo-RL reads as it trains
    job: Job
    on_row: Callable[[Row], None]
    stop_requested: Callable[[], bool]
    stop_at: int | None = None  # the step after which a rehearsal is interrupted
    last_step: int = field(init=False, default=0)  # the last step that is over
    error: EquipoiseError | None = field(init=False, default=None)  # that stops the run
    _train: StepSummary | None = field(init=False, default=None)
    _row: dict[str, Any] = field(init=False, default_factory=dict)
    _last: int | None = field(init=False, default=None)  # the step that ends a run that stops

    def __post_init__(self) -> None:
        ours = self.job.config.equipoise
        self._failures = FailureMonitor(ours.max_failure_rate, ours.failure_window)
        self._mismatch = deque[float](maxlen=ours.failure_window)

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        newest = latest_checkpoint(self.job.run.checkpoints)
        return newest.step if newest else 0

    def __getattr__(self, name: str) -> Any:
        """Leave all else to NeMo-RL's logger."""
        return getattr(self.logger, name)

    def log_batched_dict_as_jsonl(self, to_log: Any, filename: str) -> None:
        """Leave out every step's tokens: 75 bytes each, 16 to 100 GB a run."""
        if not filename.startswith("train_data"):
            self.logger.log_batched_dict_as_jsonl(to_log, filename)

    def log_metrics(
        self, metrics: dict[str, Any], step: int, prefix: str = "", *args: Any, **kwargs: Any
    ) -> None:
        """Join the environment's metrics, and log. Raises `Stopped` after a run's last step."""
        if prefix == "train":
            self._on_training(metrics, step)
        elif prefix == "validation" and (summary := self._summary("validation", metrics)):
            metrics.update({**summary.row, **metrics})
        self.logger.log_metrics(metrics, step, prefix, *args, **kwargs)
        if prefix == "validation":
            self._make_rankable(metrics, "val")
        elif prefix == "timing/train":
            self._end_step(step, float(metrics["total_step_time"]))

    def _on_training(self, metrics: dict[str, Any], step: int) -> None:
        """Take a step's rollouts, which synchronous training logs first, and its training.

        With dynamic sampling a step has several batches of rollouts.
        """
        trained = "loss" in metrics
        if not trained and self.job.config.grpo.use_dynamic_sampling:
            return
        if summary := self._summary("train", metrics):
            self._train = summary
            self._failures.add(summary.errors)
        row = self._train.row if self._train else {}
        metrics.update({**row, **metrics})  # NeMo-RL's own stay
        if trained:
            names = _NEMO_RL_METRICS.items()
            figures = {ours: float(metrics[theirs]) for theirs, ours in names if theirs in metrics}
            mismatch = figures.get(_MISMATCH, 1.0)
            self._mismatch.append(math.inf if math.isnan(mismatch) else mismatch)
            self._row = {**figures, **row, "step": step}
        else:
            self._make_rankable(metrics, "train")
        if not self.error:
            self.error = self._failures.error() if self._failures.exceeded else self._mismatched()
        # What is known before the training of a step stops the run after it, else after the next.
        stops = self.error or step == self.stop_at or self.stop_requested()
        if stops and self._last is None:
            self._last = step + 1 if trained else step
            self.checkpointing["save_period"] = 1

    def _mismatched(self) -> EquipoiseError | None:
        """Return the error of steps in which training and generation were not one policy.

        Single spikes are normal (NeMo-RL, docs/guides/dtensor-tp-accuracy.md), hence the median.
        """
        key = "equipoise.max_token_mult_prob_error"
        steps, bound = self._mismatch, self.job.config.equipoise.max_token_mult_prob_error
        if len(steps) < (steps.maxlen or 0) or median(steps) <= bound:
            return None
        return EquipoiseError(
            "training.sampling-mismatch",
            f"the median {_MISMATCH} of the last {len(steps)} steps is {median(steps):.3g}, above "
            f"{key} = {bound:g}: vLLM does not sample from the policy that is trained",
            "A checkpoint was saved. docs/nemo-rl.md#one-policy-in-training-and-generation says "
            f"where to look. Start a new run, or continue with --resume and a higher {key}.",
        )

    def _end_step(self, step: int, seconds: float) -> None:
        """Write what is kept of a step; NeMo-RL has saved it, if it was to be."""
        settings = self.job.config.equipoise.training_rollouts
        file = TrainingRollouts(self.job.run.training, settings.steps, self.job.steps)
        file.write_step(step, self._train.sample if self._train else ())
        self._row["seconds"] = round(seconds, 3)
        append_row(self.job.run.history, self._row)
        self.job.meter.elsewhere = self.environment.spent()
        self.on_row(self._row)
        self._row, self._train, self.last_step = {}, None, step
        if self._last is not None and self._last <= step < self.job.steps:
            raise Stopped

    def _summary(self, split: str, metrics: Mapping[str, Any]) -> StepSummary | None:
        """Ask for what was scored, and count the tokens that were read and written for it."""
        summary: StepSummary | None = self.environment.summary(split)
        if summary:
            length = metrics.get("avg_length", metrics.get("mean_gen_tokens_per_sample", 0.0))
            written = round(float(length) * len(summary.errors))
            self.job.meter.add_tokens(summary.prompt_tokens, written)
        return summary

    def _make_rankable(self, metrics: dict[str, Any], kind: str) -> None:
        """Rank a checkpoint without its metric last, in place.

        No reply of a validation may be readable. NeMo-RL sorts checkpoints by the metric and
        deletes those behind the first few. With a NaN among them the order is none, and without the
        metric it ends the run. The number is finite, for training_info.json is JSON.
        """
        chosen, _, name = (self.checkpointing["metric_name"] or "").partition(":")
        late = kind == "train" and not name.startswith("env/")  # NeMo-RL's own
        if chosen != kind or late or math.isfinite(metrics.get(name, math.nan)):
            return
        worst = sys.float_info.max
        metrics[name] = -worst if self.checkpointing["higher_is_better"] else worst
        _LOG.warning(f"{name} is not known, so a checkpoint of this step is the worst")
