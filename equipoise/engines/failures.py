"""The share of rollouts that could not be scored, over the last steps of a run."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from environments.base import Score
from equipoise.errors import EquipoiseError


def errors_of(scores: Sequence[Score]) -> tuple[str | None, ...]:
    """Why each score failed; None for those that did not."""
    return tuple(
        (score.error or "no reason given") if score.value is None else None for score in scores
    )


@dataclass(slots=True)
class FailureMonitor:
    """Counts failed scores over a window of steps and says when there are too many."""

    max_rate: float
    window: int
    _steps: deque[tuple[int, int]] = field(init=False)
    _reasons: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self._steps = deque(maxlen=self.window)

    def add(self, errors: Sequence[str | None]) -> None:
        """Count one step, from the error of each of its rollouts, None where there was none."""
        failed = [error for error in errors if error is not None]
        self._steps.append((len(failed), len(errors)))
        self._reasons.update(failed)

    @property
    def rate(self) -> float:
        """Failed share over the window, 0 to 1."""
        failed = sum(count for count, _ in self._steps)
        return failed / max(1, sum(total for _, total in self._steps))

    @property
    def exceeded(self) -> bool:
        """Whether the run must stop."""
        return self.rate > self.max_rate

    def error(self) -> EquipoiseError:
        """The message of a run that stopped."""
        reasons = "; ".join(f"{text} ({n}x)" for text, n in self._reasons.most_common(3))
        return EquipoiseError(
            f"{self.rate:.0%} of the rollouts of the last {len(self._steps)} steps could not be "
            f"scored, more than equipoise.max_failure_rate = {self.max_rate:.0%}: {reasons}",
            "A checkpoint was kept. Mend the cause, then continue with --resume.",
        )
