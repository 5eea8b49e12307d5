"""The alarm over a run's steps, for the terminal, wandb and the report."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from environments.base import REWARD
from environments.measurement import Direction
from equipoise.report.run_files import RunFiles
from equipoise.run.history import Row

# --- trends ---------------------------------------------------------------------------------------
# What the alarm over a run's steps goes by: what is paid rises and what is meant does not.
#
# docs/report.md says how often it is right.


#: The trend is taken over the last steps: at least the first number, at most the second.
FEWEST, MOST = 8, 16
#: The reward's least trend, and its least lead over the figure's; trends are from -1 to 1.
RISE, LEAD = 0.3, 0.7


@dataclass(frozen=True, slots=True)
class Window:
    """The last steps with both a reward and a figure."""

    better: Direction
    _known: deque[tuple[float, float]] = field(
        init=False, default_factory=lambda: deque(maxlen=MOST)
    )

    def add(self, reward: float, figure: float) -> bool:
        """Add a step. Return whether the reward has risen and the figure has not improved.

        Skip a step that lacks either.
        """
        if not (math.isfinite(reward) and math.isfinite(figure)):
            return False
        self._known.append((reward, figure))
        if len(self._known) < FEWEST:
            return False
        rise, gain = map(trend, zip(*self._known, strict=True))
        sign = 1 if self.better == "higher" else -1
        return rise >= RISE and rise - sign * gain >= LEAD


def trend(values: Sequence[float]) -> float:
    """Kendall's tau with time: 1 where each value is above those before it."""
    pairs = list(combinations(values, 2))
    return sum((later > first) - (later < first) for first, later in pairs) / len(pairs)


# --- alarms ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alarm:
    """The step and the message of an alarm."""

    step: float
    text: str


@dataclass(slots=True)
class AlarmMonitor:
    """Raises at most one alarm in a run, from the steps of its history so far.

    It is silent if the run has no metric to compare.
    """

    run: RunFiles
    alarm: Alarm | None = field(init=False, default=None)
    _metric: str = field(init=False)
    _window: Window | None = field(init=False)
    _steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        watched = self.run.latest.watched
        self._metric = watched.metric if watched else ""
        self._window = Window(watched.better) if watched and watched.better else None
        names = ("step", REWARD, self._column)
        columns = [self.run.history.get(name, ()) for name in names]
        for figures in zip(*columns, strict=False):  # a column that is missing has no step
            self.add(dict(zip(names, figures, strict=True)))

    def add(self, row: Row) -> Alarm | None:
        """Add the next step of the history. Return the alarm if this step raises it."""
        if self.alarm or not self._window:
            return None
        self._steps += 1
        reward, figure = (_known(row, name) for name in (REWARD, self._column))
        if self._window.add(reward, figure):
            step = _known(row, "step")
            text = (
                f"Step {step:.0f}: over {min(self._steps, MOST)} steps the reward rose and "
                f"{self.run.name_of(self._metric)} did not improve. What is paid may not be what "
                "is meant: read the replies of these steps, see docs/report.md."
            )
            self.alarm = Alarm(step, text)
        return self.alarm

    @property
    def _column(self) -> str:
        return f"env/{self._metric}"


def _known(row: Row, name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else value
