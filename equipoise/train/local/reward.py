"""The bridge between TRL's reward function and an environment."""

from collections.abc import Callable, Sequence
from typing import Any

from environments.base import PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.run.history import Row, step_row
from equipoise.run.job import FailureMonitor, score_within_budget

RewardFunction = Callable[..., list[float | None]]


def reward_function(
    environment: Environment,
    records: Sequence[PromptRecord],
    prompts: Sequence[str],
    monitor: FailureMonitor,
    record_step: Callable[[Row], None],
    keep: Callable[[Sequence[Rollout], Sequence[Score]], None],
) -> RewardFunction:
    """Make the function that `GRPOTrainer` calls once per step with whole sets.

    The dataset's column `index` says which record a completion belongs to. A score of None stays
    None: TRL leaves it out of the baseline and gives it advantage 0.
    """

    def score(*, completions: list[Any], index: list[int], **_: Any) -> list[float | None]:
        rollouts = []
        for i, completion in zip(index, completions, strict=True):
            text = completion if isinstance(completion, str) else completion[-1]["content"]
            record = records[i]
            rollouts.append(
                Rollout(record.id, record.set_id, record.split, prompts[i], text, record.metadata)
            )
        scores = score_within_budget(environment, rollouts)
        monitor.add([score.error for score in scores])
        record_step(step_row(environment, rollouts, scores))
        keep(rollouts, scores)
        return [item.value for item in scores]

    score.__name__ = environment.name
    return score
