"""Whether what samples and what is trained are one policy: NeMo-RL's `token_mult_prob_error`.

The mean, over the generated tokens of a step, of the factor by which the probabilities of vLLM and
of training differ: 1 where they are equal. Another model in vLLM, a layer that it drops, a kernel
that is wrong raise it, and nothing else of a run need show that.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from equipoise.errors import EquipoiseError

METRIC = "token_mult_prob_error"
KEY = "equipoise.max_token_mult_prob_error"
_LOOK = (
    "docs/nemo-rl.md#one-policy-in-training-and-generation says what raises it and where to look."
)


@dataclass(slots=True)
class MismatchMonitor:
    """The last steps' figures, and whether their median is above the bound.

    Single spikes are no fault (NeMo-RL, docs/guides/dtensor-tp-accuracy.md), hence the median.
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
        """The message of a run that stopped."""
        return EquipoiseError(
            "training.sampling-mismatch",
            f"the median {METRIC} of the last {self.window} steps is {median(self._steps):.3g}, "
            f"above {KEY} = {self.bound:g}: vLLM does not sample from the policy that is trained",
            f"A checkpoint was saved. {_LOOK} Remove the cause and start a new run, or continue "
            f"with --resume and a higher {KEY}, if these steps are as you want them.",
        )
