"""The learning signal of the baseline, before GRPO begins."""

from equipoise.files.errors import EquipoiseError
from equipoise.run.directory import BASELINE
from equipoise.run.job import Job
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.statistics.learning_signal import learning_signal

_NO_SIGNAL = (
    "Name a model that writes what the task asks for, fine-tune it on examples first (`equipoise "
    "prepare TASK --examples FILE`, see docs/own-data.md), let it write more "
    "(policy.generation.max_new_tokens), or let its generations differ "
    "(policy.generation.temperature). equipoise.stop_without_signal=false trains all the same."
)


def begin_training(job: Job, steps: int) -> None:
    """Say what the baseline promises of GRPO, and that it begins or goes on. See `check_signal`."""
    check_signal(job)
    job.reporter.heading(f"GRPO training, {steps} steps")


def check_signal(job: Job) -> None:
    """Say what the baseline promises of training.

    Raises `EquipoiseError` when there is nothing to learn from, unless the configuration wants to
    go on.
    """
    signal = learning_signal(*read_scored_rollouts(job.run.rollouts(BASELINE)))
    examples = "".join(f"\n  {reply}" for reply in signal.commonest)
    summary = f"{signal}. The commonest replies:{examples}"
    if signal.none and job.config.equipoise.stop_without_signal:
        raise EquipoiseError(
            "training.no-signal", f"there is nothing to learn from: {summary}", _NO_SIGNAL
        )
    if signal.none or signal.little:
        amount = "nothing" if signal.none else "little"
        job.reporter.warn(f"there is {amount} to learn from: {summary}")
    else:
        job.reporter.say(f"signal: {signal}")
