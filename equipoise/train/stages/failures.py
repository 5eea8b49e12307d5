"""Failed scores of training: when a run must stop for them."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from environments.base import Failure
from equipoise.files.errors import EquipoiseError
from equipoise.run.job import most_common
from equipoise.run.prompts import BUDGET_REMEDY


@dataclass(slots=True)
class FailureMonitor:
    """Counts failed scores over a window of steps and says when there are too many."""

    max_rate: float
    window: int
    _steps: deque[tuple[int, int]] = field(init=False)
    _failures: Counter[Failure] = field(init=False, default_factory=Counter)
    _budget_spent: Failure | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._steps = deque(maxlen=self.window)

    def add(self, errors: Sequence[Failure | None]) -> None:
        """Count one step, from the error of each of its rollouts, None where there was none."""
        failures = [error for error in errors if error is not None]
        self._steps.append((len(failures), len(errors)))
        self._failures.update(failures)
        spent = (failure for failure in failures if failure.kind == "budget")
        self._budget_spent = next(spent, self._budget_spent)

    @property
    def rate(self) -> float:
        """Failed share over the window, 0 to 1."""
        failed = sum(count for count, _ in self._steps)
        return failed / max(1, sum(total for _, total in self._steps))

    @property
    def exceeded(self) -> bool:
        return self._budget_spent is not None or self.rate > self.max_rate

    def error(self) -> EquipoiseError:
        """The message of a run that stopped."""
        if self._budget_spent is not None:
            remedy = f"A checkpoint was saved. {BUDGET_REMEDY}"
            return EquipoiseError("training.spent-budget", self._budget_spent.text, remedy)
        return EquipoiseError(
            "training.failed-scores",
            f"{self.rate:.0%} of the rollouts of the last {len(self._steps)} steps could not be "
            f"scored, more than equipoise.max_failure_rate = {self.max_rate:.0%}: "
            f"{most_common(self._failures)}",
            "A checkpoint was saved. Remove the cause, then continue with --resume.",
        )
