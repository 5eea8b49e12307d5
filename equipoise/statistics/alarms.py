"""The alarm over a run's steps: what is paid rises and what is meant does not.

docs/alarms.md says how often it is right, and what other alarms are worth that are not here.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from environments.measurement import Direction

#: How many of the last steps are looked at: all of them until there are the most.
FEWEST, MOST = 8, 16
#: The least trend of the reward, and by how much it exceeds the figure's; from -1 to 1 both.
RISE, LEAD = 0.3, 0.7


@dataclass(frozen=True, slots=True)
class Window:
    """The last steps at which reward and figure are both known."""

    better: Direction
    _known: deque[tuple[float, float]] = field(
        init=False, default_factory=lambda: deque(maxlen=MOST)
    )

    def add(self, reward: float, figure: float) -> bool:
        """Take a step. Returns whether the reward rose up to it and the figure did not improve.

        A step at which either is not known is passed over.
        """
        if not (math.isfinite(reward) and math.isfinite(figure)):
            return False
        self._known.append((reward, figure))
        if len(self._known) < FEWEST:
            return False
        rise, gain = map(trend, zip(*self._known, strict=True))
        sign = 1 if self.better == "higher" else -1
        return rise >= RISE and rise - sign * gain >= LEAD


def reward_alone(
    rewards: Sequence[float], figures: Sequence[float], better: Direction
) -> int | None:
    """The index of the first step up to which the reward rose and the figure did not improve."""
    window = Window(better)
    pairs = enumerate(zip(rewards, figures, strict=True))
    return next((step for step, pair in pairs if window.add(*pair)), None)


def trend(values: Sequence[float]) -> float:
    """Kendall's tau with time: 1 where each value is above those before it."""
    pairs = list(combinations(values, 2))
    return sum((later > first) - (later < first) for first, later in pairs) / len(pairs)
