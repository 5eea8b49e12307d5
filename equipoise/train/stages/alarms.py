"""The steps of a run as they are taken: shown, and listened to for the alarm.

The alarm is a warning in the terminal and an alert in wandb, once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from equipoise.files.console import showing_steps
from equipoise.report.alarms import AlarmMonitor
from equipoise.report.run_files import RunFiles, read_object
from equipoise.run.history import Row, read_history
from equipoise.train.stages.around_training import BASELINE
from equipoise.train.stages.job import Job


@contextmanager
def watching_steps(job: Job, total: int, done: int) -> Iterator[Callable[[Row], None]]:
    """Yield what takes each row of the history once it is written."""
    history = read_history(job.run.history)  # up to the checkpoint that a resumed run goes on from

    @cache
    def monitor() -> AlarmMonitor:
        """The evaluation is read when there are steps, for NeMo-RL makes it after its start."""
        evaluation = read_object(job.run.evaluation(BASELINE))
        presentation = job.environment.presentation
        return AlarmMonitor(
            RunFiles(evaluations={"before": evaluation}, history=history, presentation=presentation)
        )

    with showing_steps(job.reporter, total, done) as show:

        def take(row: Row) -> None:
            show(row)
            if alarm := monitor().add(row):
                job.reporter.warn(alarm.text)
                job.tracker.alert(alarm.text)

        yield take
