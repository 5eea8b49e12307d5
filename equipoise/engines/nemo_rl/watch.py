"""What happens around NeMo-RL's steps: stages, history, failures, an orderly stop."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from data_prep.files import hash_file, read_json
from environments.base import (
    VALIDATION_SPLIT,
    HasSources,
    NeedsReference,
    PromptRecord,
    Rollout,
)
from equipoise.engines.nemo_rl.checkpoints import seal_newest
from equipoise.engines.nemo_rl.scoring import StepSummary
from equipoise.errors import EquipoiseError
from equipoise.run.history import Row, append_row
from equipoise.run.kept_files import keep_files
from equipoise.run.ownership import confirm_owner
from equipoise.run.provenance import keep_hash
from equipoise.run.rollouts import read_rollouts, write_rollouts
from equipoise.stages.failures import FailureMonitor
from equipoise.stages.job import Job, keep_evaluation, keep_generations, refuse_without_signal

#: NeMo-RL's names for what the history keeps of its training metrics.
_NEMO_RL_METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "mean_gen_tokens_per_sample": "completion_length",
    "truncation_rate": "truncated",
}
_SECONDS = "total_step_time"

#: Records, completions of each, a label -> their rollouts, siblings adjacent.
Sample = Callable[[Sequence[PromptRecord], int, str], list[Rollout]]


class Scorer(Protocol):
    """The environment's actor, seen from the driver."""

    def summary(self, split: str) -> StepSummary | None:
        """What was scored of a split since the last call."""

    def load_reference(self) -> None:
        """The frozen model's rollouts are in the run directory now."""

    def unseen(self, paths: Sequence[str]) -> list[str]:
        """Those of the driver's files and folders that the actor cannot see."""

    def sources(self) -> dict[str, str]:
        """What the reward depends on, as the actor sees it."""

    def spent(self) -> dict[str, dict[str, float]]:
        """What the actor has asked of other models since it started."""


@dataclass(slots=True)
class Watch:
    """Keeps a run directory like the local engine's while NeMo-RL trains."""

    job: Job
    steps: int
    on_row: Callable[[Row], None]
    stop_after: int | None = None  # steps of this process; the rehearsal's way to be interrupted
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    monitor: FailureMonitor = field(init=False)
    _scorer: Scorer | None = field(init=False, default=None)
    _train: StepSummary | None = field(init=False, default=None)
    _row: dict[str, Any] = field(init=False, default_factory=dict)
    _taken: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        settings = self.job.config.equipoise
        self.monitor = FailureMonitor(settings.max_failure_rate, settings.failure_window)

    @property
    def validates(self) -> bool:
        """Whether there is something to validate on."""
        return bool(self.job.split(VALIDATION_SPLIT))

    def begin(self, scorer: Scorer) -> None:
        """Training begins or goes on; the actor of a resumed run has read its reference itself."""
        self._scorer = scorer
        refuse_other_view(self.job, scorer)
        use_reference(self.job)

    def before_first_step(self, sample: Sample) -> None:
        """Draw the reference and the baseline from the frozen model, where they are missing."""
        job, environment = self.job, self.job.environment
        if isinstance(environment, NeedsReference) and not job.run.reference.exists():
            with job.timed("reference"):
                job.reporter.heading("Reference: what the frozen model decides")
                rollouts = sample(job.records, environment.reference_generations, "reference")
                confirm_owner(job.run.root)
                write_rollouts(job.run.reference, rollouts)
            keep_files(job.run, job.run.reference)
            use_reference(job)
            if self._scorer:
                self._scorer.load_reference()
        if not job.run.evaluation("baseline").exists():
            job.reporter.heading("baseline evaluation")
            with job.timed("baseline"):
                keep_evaluation(job, "baseline", lambda: self._draw("baseline", sample))
        refuse_unknown_metric(job)
        refuse_without_signal(job)
        if self.steps:
            job.reporter.heading(f"GRPO training, {self.steps} steps")

    def after_last_step(self, sample: Sample) -> None:
        """Draw what the trained model writes; `score_final` scores it when the model is saved.

        What was kept before may be of a model that a kill has lost.
        """
        job = self.job
        job.reporter.heading("final evaluation")
        with job.timed("final"):
            keep_generations(job, "final", lambda: self._draw("final", sample))

    def _draw(self, stage: str, sample: Sample) -> list[Rollout]:
        evaluation = self.job.config.equipoise.evaluation
        return sample(self.job.split(evaluation.split), evaluation.generations, stage)

    def should_stop(self) -> bool:
        """Asked once at the end of each step, before NeMo-RL decides whether to save.

        Raises `LostRunError` when another process has taken the run over.
        """
        confirm_owner(self.job.run.root)
        self._taken += 1
        self._train = self._summary("train") or self._train
        if self._train:
            self.monitor.add(self._train.errors)
        if self._scorer:
            self.job.meter.elsewhere = self._scorer.spent()
        return self.monitor.exceeded or self._taken == self.stop_after or self.stop_requested()

    def count_tokens(self, metrics: Mapping[str, Any], rollouts: int) -> None:
        """Count what the policy read and wrote in a batch of training, validation or evaluation."""
        names = ("mean_gen_tokens_per_sample", "mean_total_tokens_per_sample")
        written, seen = (round(metrics.get(name, 0.0) * rollouts) for name in names)
        self.job.meter.add_tokens(seen - written, written)

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

    def on_metrics(self, metrics: dict[str, Any], step: int, prefix: str) -> None:
        """NeMo-RL logs: add what the environment measured, and write the step's row.

        `metrics` is changed in place, for NeMo-RL looks up `checkpointing.metric_name` in it.
        """
        if prefix == "validation" and (summary := self._summary("validation")):
            metrics.update(_new(summary.row, metrics))
        elif prefix == "train":
            row = self._train.row if self._train else {}
            self._row = {**_known(metrics), **row, "step": step}
            metrics.update(_new(row, metrics))
        elif prefix == "timing/train" and self._row:
            self._row["seconds"] = round(float(metrics[_SECONDS]), 3)
            append_row(self.job.run.history, self._row)
            seal_newest(self.job.run.checkpoints)  # the step's, which is finished by now
            self.on_row(self._row)
            self._row, self._train = {}, None

    def _summary(self, split: str) -> StepSummary | None:
        return self._scorer.summary(split) if self._scorer else None


def score_final(job: Job) -> None:
    """Score what the trained model wrote, where that is not done yet."""
    if job.run.evaluation("final").exists():
        return
    use_reference(job)
    with job.timed("final"):
        keep_evaluation(job, "final", _not_drawn)


def _not_drawn() -> list[Rollout]:
    raise EquipoiseError(
        "the run is trained to its last step, but what the trained model wrote is missing",
        "Delete the newest checkpoint and continue with --resume, which takes its steps again.",
    )


def use_reference(job: Job) -> None:
    """Hand the kept reference to the environment here, which evaluates; the actor reads it, too."""
    path, environment = job.run.reference, job.environment
    if isinstance(environment, NeedsReference) and path.exists():
        keep_hash(job.run.provenance, "reference", hash_file(path))
        environment.set_reference(read_rollouts(path))


def refuse_other_view(job: Job, scorer: Scorer) -> None:
    """Raise `EquipoiseError` where the actor's node does not see what the driver's node sees."""
    cache = Path(job.config.equipoise.cache_dir).expanduser()
    written = [str(path.resolve()) for path in (job.run.root, cache) if path.exists()]
    unlike = scorer.unseen(written)
    if isinstance(job.environment, HasSources):
        mine, theirs = dict(job.environment.sources()), scorer.sources()
        unlike += sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))
    if unlike:
        raise EquipoiseError(
            f"the environment's actor does not see what the driver sees: {', '.join(unlike)}",
            "Put equipoise.output_dir, equipoise.cache_dir and the files of the task on a file "
            "system that all nodes share, or leave equipoise.environment_actor.node at driver.",
        )


def refuse_unknown_metric(job: Job) -> None:
    """Raise `EquipoiseError` where checkpoints are chosen by a metric that the task does not have.

    NeMo-RL would find out at the first save. What a task measures the baseline tells.
    """
    _, _, name = (job.config.checkpointing.metric_name or "").partition(":env/")
    known = read_json(job.run.evaluation("baseline"))["metrics"]
    if name and name not in known:
        nearest = difflib.get_close_matches(name, known, 1, 0)[0]
        raise EquipoiseError(
            f"checkpointing.metric_name: the task measures no {name}, it has {', '.join(known)}",
            f"Name val:env/{nearest}, for instance, and start again.",
        )


def _known(metrics: Mapping[str, Any]) -> dict[str, float]:
    known = _NEMO_RL_METRICS.items()
    return {ours: float(metrics[theirs]) for theirs, ours in known if theirs in metrics}


def _new(row: Mapping[str, float], metrics: Mapping[str, Any]) -> dict[str, float]:
    """What NeMo-RL has no metric of that name for."""
    return {name: value for name, value in row.items() if name not in metrics}
