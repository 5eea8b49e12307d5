"""The alarm of a run's steps in words: for the terminal, wandb and the report."""

from dataclasses import dataclass
from typing import get_args

from environments.measurement import Direction
from equipoise.report.run_files import RunFiles, as_object
from equipoise.report.tables import headline_metric
from equipoise.statistics.alarms import MOST, reward_alone


@dataclass(frozen=True, slots=True)
class Alarm:
    """The step at which an alarm spoke, and what it says."""

    step: float
    text: str


def alarm_of(run: RunFiles) -> Alarm | None:
    """Return the alarm of the history; None while it is silent, or where no metric can be better.

    The metric is the one that the report's outcome is told by.
    """
    metric = headline_metric(run)
    stated = as_object(run.latest.get("better")).get(metric)
    better: Direction | None = next((d for d in get_args(Direction) if d == stated), None)
    columns = [run.history.get(name, ()) for name in ("step", "reward", f"env/{metric}")]
    if not (better and all(columns)):
        return None
    steps, rewards, figures = columns
    index = reward_alone(rewards, figures, better)
    if index is None:
        return None
    looked_at = min(index + 1, MOST)
    return Alarm(
        steps[index],
        f"Step {steps[index]:.0f}: over {looked_at} steps the reward rose and "
        f"{run.name_of(metric)} did not improve. What is paid may not be what is meant: read the "
        "replies of these steps, see docs/alarms.md.",
    )
