"""A watch over NeMo-RL's steps: stages, history, failures, an orderly stop."""

import difflib
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from data_prep.files import read_json
from environments.base import VALIDATION_SPLIT
from equipoise.errors import EquipoiseError
from equipoise.run.history import Row, append_row
from equipoise.run.rollouts import TrainingRollouts
from equipoise.train.nemo_rl.checkpoints import seal_newest
from equipoise.train.nemo_rl.scoring import MessageLog, StepSummary
from equipoise.train.stages.around_training import (
    FINAL,
    Sample,
    before_training,
    begin_training,
    generate,
    score,
    use_reference,
)
from equipoise.train.stages.job import FailureMonitor, Job
from equipoise.train.stages.probe import draw_greedy, probe, score_greedy

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
        """Count a step; returns a warning where its figure is above the bound.

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
        """Return the message of a run that stopped."""
        return EquipoiseError(
            "training.sampling-mismatch",
            f"the median {METRIC} of the last {self.window} steps is {median(self._steps):.3g}, "
            f"above {KEY} = {self.bound:g}: vLLM does not sample from the policy that is trained",
            f"A checkpoint was saved. {_LOOK} Remove the cause and start a new run, or continue "
            f"with --resume and a higher {KEY}, if these steps are as you want them.",
        )


# --- watch ----------------------------------------------------------------------------------------


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

#: Keys of `policy` that change what a frozen model writes.
_WRITTEN_BY = ("precision", "hf_config_overrides", "max_total_sequence_length", "generation")


@dataclass(slots=True)
class Watch:
    """Keeps a run directory like the local engine's while NeMo-RL trains."""

    job: Job
    steps: int
    on_row: Callable[[Row], None]
    stop_after: int | None = None  # steps of this process; the rehearsal's way to be interrupted
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    greedy: bool = field(init=False, default=False)  # whether replies are the likeliest, for now
    error: Exception | None = field(init=False, default=None)  # that NeMo-RL may have passed over
    ended: bool = field(init=False, default=False)  # at its last step, or as it was asked to
    monitor: FailureMonitor = field(init=False)
    mismatch: MismatchMonitor = field(init=False)
    _scorer: Any = field(init=False, default=None)  # the environment's actor, see actor.py
    _train: StepSummary | None = field(init=False, default=None)
    _row: dict[str, Any] = field(init=False, default_factory=dict)
    _step_count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        settings = self.job.config.equipoise
        window = settings.failure_window
        self.monitor = FailureMonitor(settings.max_failure_rate, window)
        self.mismatch = MismatchMonitor(settings.max_token_mult_prob_error, window)

    @property
    def validates(self) -> bool:
        """Whether there is something to validate on."""
        return bool(self.job.split(VALIDATION_SPLIT))

    @property
    def begun(self) -> bool:
        """Whether NeMo-RL has set everything up and begun to train."""
        return self._scorer is not None

    def begin(self, scorer: Any) -> None:
        """Training begins or goes on; the actor of a resumed run has read its reference itself."""
        self._scorer = scorer
        refuse_other_view(self.job, scorer)
        use_reference(self.job)

    def before_first_step(self, frozen: Sample) -> None:
        """Draw the reference and the baseline from the frozen model, where they are missing."""
        had_reference = self.job.run.reference.exists()
        before_training(self.job, frozen, reference_identity(self.job))
        if self._scorer and not had_reference:
            self._scorer.load_reference()
        refuse_unknown_metric(self.job)
        probe(self.job, frozen)
        begin_training(self.job, self.steps)

    def after_last_step(self, trained: Sample) -> None:
        """Draw what the trained model writes; `score_final` scores it when the model is saved.

        What was drawn before may be of a model that a kill has lost.
        """
        with self.job.timed(FINAL):
            generate(self.job, FINAL, trained)
            draw_greedy(self.job, trained)

    def should_stop(self) -> bool:
        """Answer once at the end of each step, before NeMo-RL decides whether to save."""
        self._step_count += 1
        self._train = self._summary("train") or self._train
        if self._train:
            self.monitor.add(self._train.errors)
        if self._scorer:
            self.job.meter.elsewhere = self._scorer.spent()
        exceeded = self.monitor.exceeded or self.mismatch.exceeded
        stop = exceeded or self._step_count == self.stop_after or self.stop_requested()
        self.ended = self.ended or stop
        return stop

    def count_tokens(self, conversations: Sequence[MessageLog]) -> None:
        """Count what the policy read and wrote in a batch of training, validation or evaluation.

        NeMo-RL's own metrics leave out the prompts.
        """
        read = sum(len(messages[0]["token_ids"]) for messages in conversations)
        replies = (m for messages in conversations for m in messages if m["role"] == "assistant")
        self.job.meter.add_tokens(read, sum(len(reply["token_ids"]) for reply in replies))

    def on_rollouts(self, metrics: dict[str, Any]) -> None:
        """A batch was sampled and scored: what training's was joins `metrics`, in place.

        NeMo-RL saves before it logs, and may choose checkpoints by one of them. With dynamic
        sampling a step has several batches, and is summed up at its end.
        """
        if self.job.config.grpo.use_dynamic_sampling:
            return
        if summary := self._summary("train"):  # else it was a batch of validation
            self._train = summary
            metrics.update(_new(summary.row, metrics))
            self.make_rankable(metrics, "train")

    def on_metrics(self, metrics: dict[str, Any], step: int, prefix: str) -> None:
        """NeMo-RL logs: add what the environment measured, and write the step's row.

        `metrics` is changed in place, for NeMo-RL looks up `checkpointing.metric_name` in it.
        """
        if prefix == "validation" and (summary := self._summary("validation")):
            metrics.update(_new(summary.row, metrics))
        elif prefix == "train":
            row = self._train.row if self._train else {}
            names = _NEMO_RL_METRICS.items()
            figures = {ours: float(metrics[theirs]) for theirs, ours in names if theirs in metrics}
            if METRIC in figures and (warning := self.mismatch.add(figures[METRIC])):
                self.job.reporter.warn(f"step {step}: {warning}")
            self._row = {**figures, **row, "step": step}
            metrics.update(_new(row, metrics))
        elif prefix == "timing/train" and self._row:
            kept = self.job.config.equipoise.training_rollouts
            file = TrainingRollouts(self.job.run.training, kept.steps, self.steps)
            file.append(step, self._train.sample if self._train else ())
            self._row["seconds"] = round(float(metrics[_SECONDS]), 3)
            append_row(self.job.run.history, self._row)
            self.ended = self.ended or step == self.steps
            seal_newest(self.job.run.checkpoints)  # the step's, which is finished by now
            self.on_row(self._row)
            self._row, self._train = {}, None

    def make_rankable(self, metrics: dict[str, Any], kind: str) -> None:
        """Have a checkpoint whose metric is not known count as the worst, in place.

        No reply of a validation may be readable. NeMo-RL sorts checkpoints by the metric and
        deletes those behind the first few. With a NaN among them the order is none, and without the
        metric it ends the run. The number is finite, for training_info.json is JSON.
        """
        checkpointing = self.job.loaded.resolved["checkpointing"]
        chosen, _, name = (checkpointing["metric_name"] or "").partition(":")
        if chosen != kind or math.isfinite(metrics.get(name, math.nan)):
            return
        worst = sys.float_info.max
        metrics[name] = -worst if checkpointing["higher_is_better"] else worst
        self.job.reporter.warn(f"{name} is not known, so a checkpoint of this step is the worst")

    def _summary(self, split: str) -> StepSummary | None:
        summary: StepSummary | None = self._scorer.summary(split) if self._scorer else None
        return summary


def score_final(job: Job) -> None:
    """Score what the trained model wrote, where that is not done yet."""
    if job.run.is_evaluated(FINAL):
        return
    if not job.run.generations(FINAL).exists():
        raise EquipoiseError(
            "nemo-rl.missing-final",
            "the run is trained to its last step, but what the trained model wrote is missing",
            "Delete the newest checkpoint and continue with --resume, which takes its steps again.",
        )
    use_reference(job)
    with job.timed(FINAL):
        score_greedy(job)  # before the folder is sealed
        score(job, FINAL)


def reference_identity(job: Job) -> str | None:
    """Identify what the frozen model writes, see `before_training`.

    Other nodes may read another model under the same name than the driver does: only digests of
    the workers' own weights are sure. None where these keep no reference policy to take them of.
    """
    provenance, policy = job.run.ledger.read(), job.loaded.resolved["policy"]
    weights = provenance.get("reference_policy")
    if not weights or None in weights:
        return None
    parts = {
        "model": provenance["hashes"].get("model"),
        "weights": weights,
        "nemo_rl": provenance.get("nemo_rl"),
        "policy": {name: policy.get(name) for name in _WRITTEN_BY},
        "seed": job.config.grpo.seed,
        "batch_size": job.config.equipoise.evaluation.batch_size,
    }
    return json.dumps(parts, sort_keys=True)


def refuse_other_view(job: Job, scorer: Any) -> None:
    """Raise `EquipoiseError` where the actor's node does not see what the driver's node sees."""
    cache = Path(job.config.equipoise.cache_dir).expanduser()
    written = [str(path.resolve()) for path in (job.run.root, cache) if path.exists()]
    unlike = scorer.unseen(written)
    mine = dict(job.environment.sources())
    theirs = scorer.sources() if mine else {}
    unlike += sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))
    if unlike:
        raise EquipoiseError(
            "nemo-rl.other-view",
            f"the environment's actor does not see what the driver sees: {', '.join(unlike)}",
            "Put equipoise.output_dir, equipoise.cache_dir and the files of the task on a file "
            "system that all nodes share, or leave equipoise.environment_actor.node at driver.",
        )


def refuse_unknown_metric(job: Job) -> None:
    """Raise `EquipoiseError` where checkpoints are chosen by a metric that the task does not have.

    NeMo-RL would find out at the first save. What a task measures the baseline tells.
    """
    _, _, name = (job.config.checkpointing.metric_name or "").partition(":env/")
    metrics = read_json(job.run.evaluation("baseline"))["metrics"]
    if name and name not in metrics:
        nearest = difflib.get_close_matches(name, metrics, 1, 0)[0]
        raise EquipoiseError(
            "nemo-rl.unknown-metric",
            f"checkpointing.metric_name: the task measures no {name}, it has {', '.join(metrics)}",
            f"Name val:env/{nearest}, for instance, and start again.",
        )


def _new(row: Mapping[str, float], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Leave out values named like a metric of NeMo-RL's."""
    return {name: value for name, value in row.items() if name not in metrics}
