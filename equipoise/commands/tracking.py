"""Watching a run: its steps on the terminal and in wandb, and the alarm, once.

wandb never asks a question and never stops a run.

Online when a key is there, offline without one, not at all with `logger.wandb_enabled: false`. It
gets the configuration without secrets, and figures.
"""

import logging
import netrc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self

from equipoise.config import LoadedConfig
from equipoise.config.secrets import redacted_tree
from equipoise.files.console import showing_steps
from equipoise.report.alarms import AlarmMonitor
from equipoise.report.run_files import FOLDERS, RunFiles, read_run
from equipoise.report.words import Stage
from equipoise.run.directory import BaselineResult, Evaluation, RunDirectory, read_content
from equipoise.run.history import Row, read_history
from equipoise.run.job import BASELINE, Job

_WANDB_HOST = "api.wandb.ai"
_LOG = logging.getLogger(__name__)


def wandb_mode() -> Literal["online", "offline"] | None:
    """Online exactly when a key is there; None leaves the choice to `WANDB_MODE`."""
    if os.environ.get("WANDB_MODE"):
        return None
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    try:
        in_netrc = netrc.netrc().authenticators(_WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        in_netrc = False
    return "online" if in_netrc else "offline"


class Tracker:
    """A wandb run as a context; every failure of wandb is a warning and ends the tracking.

    It starts when there is something to tell. A resumed run goes on in the same wandb run. Where
    NeMo-RL trains, its logger has started wandb, and the result is added there.
    """

    def __init__(self, loaded: LoadedConfig, run: RunDirectory) -> None:
        self._loaded = loaded
        self._run = run
        self._by_trl = "wandb" in loaded.config.logger.report_to
        self._off = not (loaded.config.logger.wandb_enabled or self._by_trl)
        self._wandb: Any = None

    def __enter__(self) -> Self:
        if self._loaded.engine == "nemo_rl" and (mode := wandb_mode()):
            os.environ["WANDB_MODE"] = mode  # without a key NeMo-RL would ask for one
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Add the evaluations and the comparison, and finish the run."""
        self._attempt(self._conclude)
        if self._wandb is not None and self._loaded.engine == "local":
            self._attempt(lambda: self._wandb.finish(exit_code=0 if error is None else 1))

    @contextmanager
    def watching(self, job: Job, total: int, done: int) -> Iterator[Callable[[Row], None]]:
        """Yield what takes each row of the history once it is written."""
        history = read_history(
            job.run.history
        )  # up to the checkpoint that a resumed run goes on from

        @cache
        def monitor() -> AlarmMonitor:
            """The evaluation is read when there are steps, for NeMo-RL makes it after its start."""
            evaluation = read_content(job.run.evaluation(BASELINE), Evaluation) or Evaluation()
            presentation = job.environment.presentation
            return AlarmMonitor(
                RunFiles(
                    evaluations={"before": evaluation}, history=history, presentation=presentation
                )
            )

        if self._by_trl:  # it goes on in the run that there is
            self._attempt(self._started)
        with showing_steps(job.display.progress, total, done) as show:

            def take(row: Row) -> None:
                show(row)
                if alarm := monitor().add(row):
                    _LOG.warning(alarm.text)
                    self.alert(alarm.text)
                if job.loaded.engine == "local" and not self._by_trl:  # else it has been sent
                    self.log(row)

            yield take

    def log(self, row: Mapping[str, float | None]) -> None:
        """Send one row of the training history."""
        figures = {f"train/{name}": value for name, value in row.items() if value is not None}
        self._attempt(lambda: self._started().log(figures, step=int(row["step"] or 0)))

    def alert(self, text: str) -> None:
        self._attempt(lambda: self._started().alert("The reward rises alone", text))

    def _conclude(self) -> None:
        files = read_run(self._run.root)
        run = self._started() if files.evaluations else None
        if run is not None:
            run.summary.update(dict(summary(files)))

    def _started(self) -> Any:
        """The run; None where NeMo-RL has not started one."""
        if self._wandb is None and self._loaded.engine == "local":
            self._wandb = self._start()
        elif self._wandb is None:
            self._wandb = getattr(sys.modules.get("wandb"), "run", None)
        return self._wandb

    def _start(self) -> Any:
        # The settings below silence the run, but not what TRL asks wandb at each checkpoint.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        settings = self._loaded.config.logger.wandb
        return wandb.init(
            project=settings.project,
            name=settings.name or self._run.root.name,
            entity=settings.entity,
            dir=str(self._run.root),
            id=self._run.ledger.read().run_id,
            resume="allow",
            mode=wandb_mode(),
            config=redacted_tree(self._loaded.resolved),
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )

    def _attempt(self, action: Callable[[], Any]) -> None:
        # wandb reports trouble through many exception types of its own and of its transport; a
        # run that trains must not end because its tracker does.
        if self._off:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001
            _LOG.warning("wandb is off from here on: %s", error)
            self._off = True


def summary(files: RunFiles) -> Iterator[tuple[str, float | str]]:
    """Yield wandb's summary of a run: both stages, their comparison, what it took."""
    yield "objective", files.objective
    for stage, name in FOLDERS.items():
        if evaluation := files.evaluations.get(stage):
            yield from _figures(name, {m: e.value for m, e in evaluation.metrics.items()})
            yield f"{name}/failed", evaluation.n_failed
        yield from _figures(name, {"objective": _objective(files, stage)})
    for metric, row in files.comparison.items():
        yield f"verdict/{metric}", row.verdict
        if row.guard:
            yield f"guard/{metric}", row.guard
        yield from _figures("change", {metric: row.difference})
        yield from _figures("p_holm", {metric: row.p_holm})
    yield from _figures("usage", files.provenance.usage.model_dump(exclude={"calls"}))


def _objective(files: RunFiles, stage: Stage) -> float | None:
    """The figure that decides, by which trivial baselines are compared: a metric or the reward.

    Its name is the same for every task, so that a sweep can name it.
    """
    untrained = files.probe.baselines.get("untrained", BaselineResult()).metrics
    probed = {"before": untrained, "after": files.probe.trained}[stage]
    measured = files.evaluations.get(stage, Evaluation()).metrics
    figure = measured.get(files.objective) or probed.get(files.objective)
    return figure.value if figure else None


def _figures(section: str, values: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    return ((f"{section}/{name}", v) for name, v in values.items() if v is not None)
