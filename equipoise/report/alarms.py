"""The alarm of a run's steps in words: for the terminal, wandb and the report."""

import math
from dataclasses import dataclass, field
from typing import get_args

from environments.base import REWARD
from environments.measurement import Direction
from equipoise.report.run_files import RunFiles, as_object
from equipoise.run.history import Row
from equipoise.statistics.alarms import MOST, Window


@dataclass(frozen=True, slots=True)
class Alarm:
    """The step at which an alarm spoke, and what it says."""

    step: float
    text: str


@dataclass(slots=True)
class AlarmMonitor:
    """Speaks once in a run, of whose history it has read the steps so far.

    It is silent for good where the run has no metric to go by.
    """

    run: RunFiles
    alarm: Alarm | None = field(init=False, default=None)
    _metric: str = field(init=False)
    _window: Window | None = field(init=False)
    _steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        watched = as_object(self.run.latest.get("watched"))
        ways = get_args(Direction)
        better: Direction | None = next((w for w in ways if w == watched.get("better")), None)
        self._metric = str(watched.get("metric"))
        self._window = Window(better) if better else None
        names = ("step", REWARD, self._column)
        columns = [self.run.history.get(name, ()) for name in names]
        for figures in zip(*columns, strict=False):  # a column that is missing has no step
            self.add(dict(zip(names, figures, strict=True)))

    def add(self, row: Row) -> Alarm | None:
        """Take the next step of the history. Returns the alarm where it speaks at this one."""
        if self.alarm or not self._window:
            return None
        self._steps += 1
        reward, figure = (_known(row, name) for name in (REWARD, self._column))
        if self._window.add(reward, figure):
            self.alarm = Alarm(step := _known(row, "step"), self._words(step))
        return self.alarm

    @property
    def _column(self) -> str:
        return f"env/{self._metric}"

    def _words(self, step: float) -> str:
        return (
            f"Step {step:.0f}: over {min(self._steps, MOST)} steps the reward rose and "
            f"{self.run.name_of(self._metric)} did not improve. What is paid may not be what is "
            "meant: read the replies of these steps, see docs/alarms.md."
        )


def _known(row: Row, name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else value
