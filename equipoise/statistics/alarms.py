"""The alarm over a run's steps: what is paid rises and what is meant does not.

docs/alarms.md says how often it is right, and what other alarms are worth that are not here.
"""

import math
from collections.abc import Sequence
from itertools import combinations

from environments.measurement import Direction

#: How many of the last steps are looked at: all of them until there are the most.
FEWEST, MOST = 8, 16
#: The least trend of the reward, and by how much it exceeds the figure's; from -1 to 1 both.
RISE, LEAD = 0.3, 0.7


def reward_alone(
    rewards: Sequence[float], figures: Sequence[float], better: Direction
) -> int | None:
    """The index of the first step up to which the reward rose and the figure did not improve.

    Steps at which either is not known are passed over.
    """
    sign = 1 if better == "higher" else -1
    pairs = enumerate(zip(rewards, figures, strict=True))
    known = [step for step, pair in pairs if all(map(math.isfinite, pair))]
    for end in range(FEWEST, len(known) + 1):
        steps = known[max(0, end - MOST) : end]
        rise, gain = (trend([values[step] for step in steps]) for values in (rewards, figures))
        if rise >= RISE and rise - sign * gain >= LEAD:
            return steps[-1]
    return None


def trend(values: Sequence[float]) -> float:
    """Kendall's tau with time: 1 where each value is above those before it."""
    pairs = list(combinations(values, 2))
    return sum((later > first) - (later < first) for first, later in pairs) / len(pairs)
