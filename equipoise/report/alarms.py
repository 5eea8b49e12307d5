"""The alarm of a run's steps in words: for the terminal, wandb and the report."""

from dataclasses import dataclass
from typing import get_args

from environments.measurement import Direction
from equipoise.report.run_files import RunFiles, as_object
from equipoise.statistics.alarms import MOST, reward_alone


@dataclass(frozen=True, slots=True)
class Alarm:
    """The step at which an alarm spoke, and what it says."""

    step: float
    text: str


def alarm_of(run: RunFiles) -> Alarm | None:
    """Return the alarm of the history; None while it is silent, or without a metric to go by."""
    watched = as_object(run.latest.get("watched"))
    metric = str(watched.get("metric"))
    better: Direction | None = next(
        (way for way in get_args(Direction) if way == watched.get("better")), None
    )
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
