"""NeMo-RL's logger, around which a run keeps its history and is stopped."""

import math
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.run.history import Row, append_row
from equipoise.run.job import FailureMonitor, Job
from equipoise.run.rollouts import TrainingRollouts
from equipoise.train.nemo_rl.checkpoints import seal_newest
from equipoise.train.nemo_rl.scoring import StepSummary

# --- mismatch -------------------------------------------------------------------------------------
# Whether what samples and what is trained are one policy: NeMo-RL's `token_mult_prob_error`.
#
# The mean, over the generated tokens of a step, of the factor by which the probabilities of vLLM
# and of training differ: 1 where they are equal. Another model in vLLM, a layer that it drops, a
# kernel that is wrong raise it, and nothing else of a run need show that.


METRIC = "token_mult_prob_error"
KEY = "equipoise.max_token_mult_prob_error"
_LOOK = (
    "docs/nemo-rl.md#one-policy-in-training-and-generation says what raises it and where to look."
)


@dataclass(slots=True)
class MismatchMonitor:
    """A window of the last steps' figures, and whether their median is above the bound.

    Single spikes are normal (NeMo-RL, docs/guides/dtensor-tp-accuracy.md), hence the median.
    """

    bound: float
    window: int
    _steps: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self._steps = deque(maxlen=self.window)

    def add(self, value: float) -> str | None:
        """Count a step; return a warning where its figure is above the bound.

        Not a number is above every bound. A step like the one before it is not warned of again.
        """
        before = self._steps[-1] if self._steps else 0.0
        self._steps.append(math.inf if math.isnan(value) else value)
        if before > self.bound or self._steps[-1] <= self.bound:
            return None
        return (
            f"{METRIC} is {value:.3g}, above {KEY} = {self.bound:g}: vLLM may not sample from the "
            f"policy that is trained. The run stops where the median of {self.window} steps is. "
            f"{_LOOK}"
        )

    @property
    def exceeded(self) -> bool:
        """Whether the run must stop: so many steps are known, and their median is too high."""
        return len(self._steps) == self.window and median(self._steps) > self.bound

    def error(self) -> EquipoiseError:
        """Return the error of a run that stopped."""
        return EquipoiseError(
            "training.sampling-mismatch",
            f"the median {METRIC} of the last {self.window} steps is {median(self._steps):.3g}, "
            f"above {KEY} = {self.bound:g}: vLLM does not sample from the policy that is trained",
            f"A checkpoint was saved. {_LOOK} Remove the cause and start a new run, or continue "
            f"with --resume and a higher {KEY}, if these steps are as you want them.",
        )


# --- logger ---------------------------------------------------------------------------------------


#: NeMo-RL's names for what the history keeps of its training metrics.
_NEMO_RL_METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "mean_gen_tokens_per_sample": "completion_length",
    "truncation_rate": "truncated",
    METRIC: METRIC,
    "gen_kl_error": "gen_kl_error",
}
_SECONDS = "total_step_time"


@dataclass
class HistoryLogger:
    """NeMo-RL's logger, joined by the environment's metrics; it writes a run's files as steps end.

    NeMo-RL calls it with the dictionaries in which it looks up `checkpointing.metric_name`, so
    metrics are added in place.
    """

    logger: Any  # NeMo-RL's
    environment: Any  # the actor, by plain calls
    checkpointing: dict[str, Any]  # of the configuration that NeMo-RL reads as it trains
    job: Job
    steps: int
    on_row: Callable[[Row], None]
    stop_requested: Callable[[], bool]
    stop_at: int | None = None  # the step after which a rehearsal is interrupted
    monitor: FailureMonitor = field(init=False)
    mismatch: MismatchMonitor = field(init=False)
    taken: int = field(init=False, default=0)  # the last step that is over
    _train: StepSummary | None = field(init=False, default=None)
    _row: dict[str, Any] = field(init=False, default_factory=dict)
    _error: EquipoiseError | None = field(init=False, default=None)
    _last: int | None = field(init=False, default=None)  # the step that ends a run that stops

    def __post_init__(self) -> None:
        settings = self.job.config.equipoise
        self.monitor = FailureMonitor(settings.max_failure_rate, settings.failure_window)
        self.mismatch = MismatchMonitor(settings.max_token_mult_prob_error, settings.failure_window)

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
            metrics.update(_new(summary.row, metrics))
        self.logger.log_metrics(metrics, step, prefix, *args, **kwargs)
        if prefix == "validation":
            self._make_rankable(metrics, "val")
        elif prefix == "timing/train":
            self._end_step(step, float(metrics[_SECONDS]))

    def _on_training(self, metrics: dict[str, Any], step: int) -> None:
        """Take a step's rollouts, which synchronous training logs first, and its training.

        With dynamic sampling a step has several batches of rollouts.
        """
        trained = "loss" in metrics
        if not trained and self.job.config.grpo.use_dynamic_sampling:
            return
        if summary := self._summary("train", metrics):
            self._train = summary
            self.monitor.add(summary.errors)
        row = self._train.row if self._train else {}
        metrics.update(_new(row, metrics))
        if trained:
            names = _NEMO_RL_METRICS.items()
            figures = {ours: float(metrics[theirs]) for theirs, ours in names if theirs in metrics}
            if METRIC in figures and (warning := self.mismatch.add(figures[METRIC])):
                self.job.reporter.warn(f"step {step}: {warning}")
            self._row = {**figures, **row, "step": step}
        else:
            self._make_rankable(metrics, "train")
        for monitor in (self.monitor, self.mismatch):
            if monitor.exceeded and not self._error:
                self._error = monitor.error()
        # What is known before the training of a step stops the run after it, else after the next.
        stops = self._error or step == self.stop_at or self.stop_requested()
        if stops and self._last is None:
            self._last = step + 1 if trained else step
            self.checkpointing["save_period"] = 1

    def _end_step(self, step: int, seconds: float) -> None:
        """Write what is kept of a step; NeMo-RL has saved it, if it was to be."""
        kept = self.job.config.equipoise.training_rollouts
        file = TrainingRollouts(self.job.run.training, kept.steps, self.steps)
        file.append(step, self._train.sample if self._train else ())
        self._row["seconds"] = round(seconds, 3)
        append_row(self.job.run.history, self._row)
        seal_newest(self.job.run.checkpoints, step)
        self.job.meter.elsewhere = self.environment.spent()
        self.on_row(self._row)
        self._row, self._train, self.taken = {}, None, step
        if self._last is not None and self._last <= step < self.steps:
            raise Stopped

    def raise_error(self) -> None:
        """Raise `EquipoiseError` where failures or a mismatch have stopped the run."""
        if self._error:
            raise self._error

    def _summary(self, split: str, metrics: Mapping[str, Any]) -> StepSummary | None:
        """Ask for what was scored, and count the tokens that were read and written for it."""
        summary: StepSummary | None = self.environment.summary(split)
        if summary:
            length = metrics.get("avg_length", metrics.get("mean_gen_tokens_per_sample", 0.0))
            written = round(float(length) * len(summary.errors))
            self.job.meter.add_tokens(summary.prompt_tokens, written)
        return summary

    def _make_rankable(self, metrics: dict[str, Any], kind: str) -> None:
        """Have a checkpoint whose metric is not known count as the worst, in place.

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
        self.job.reporter.warn(f"{name} is not known, so a checkpoint of this step is the worst")


def _new(row: Mapping[str, float], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Leave out values named like a metric of NeMo-RL's."""
    return {name: value for name, value in row.items() if name not in metrics}
