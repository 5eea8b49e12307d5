"""The bridge between TRL's reward function and an environment."""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

from environments.base import Environment, PromptRecord, Rollout, Score
from equipoise.engines.failures import FailureMonitor
from equipoise.engines.local.history import Row

RewardFunction = Callable[..., list[float | None]]


def reward_function(
    environment: Environment,
    records: Sequence[PromptRecord],
    prompts: Sequence[str],
    monitor: FailureMonitor,
    record_step: Callable[[Row], None],
) -> RewardFunction:
    """What `GRPOTrainer` calls once per step with whole sets.

    The dataset's column `index` says which record a completion belongs to. A score of None stays
    None: TRL leaves it out of the baseline and gives it advantage 0.
    """

    def score(*, completions: list[Any], index: list[int], **_: Any) -> list[float | None]:
        rollouts = [
            _rollout(records[i], prompts[i], completion)
            for i, completion in zip(index, completions, strict=True)
        ]
        scores = environment.score(rollouts)
        monitor.add(scores)
        record_step(step_row(environment, rollouts, scores))
        return [item.value for item in scores]

    score.__name__ = environment.name
    return score


def step_row(
    environment: Environment, rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> dict[str, float]:
    """A step's rewards and metrics: `reward`, `reward/<component>`, `env/<metric>`, `failures`."""
    values = [score.value for score in scores if score.value is not None]
    row = {"failures": float(len(scores) - len(values))}
    if values:
        row |= {"reward": fmean(values), "reward_std": pstdev(values)}
    row |= _component_means(scores)
    metrics = environment.measure(rollouts, scores).point_estimates()
    return row | {f"env/{name}": value for name, value in metrics.items()}


def _component_means(scores: Sequence[Score]) -> dict[str, float]:
    collected: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.components.items():
            collected.setdefault(name, []).append(value)
    return {f"reward/{name}": fmean(collected[name]) for name in sorted(collected)}


def _rollout(record: PromptRecord, prompt: str, completion: Any) -> Rollout:
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return Rollout(record.id, record.set_id, record.split, prompt, text, record.metadata)
