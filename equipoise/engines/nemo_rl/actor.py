"""The one Ray actor that serves every environment to NeMo-RL."""

from collections.abc import Sequence
from typing import Any

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from environments.base import NeedsReference, Rollout
from equipoise.engines.nemo_rl.scoring import MessageLog, StepScorer, StepSummary
from equipoise.task_environment import build_environment


@ray.remote(max_restarts=-1, max_task_retries=-1)
class EnvironmentActor(EnvironmentInterface):
    """Built by NeMo-RL with the configuration's `env.<name>`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        environment = build_environment(**settings)
        self._scorer = StepScorer(environment)

    def step(
        self,
        message_log_batch: Sequence[MessageLog],
        metadata: list[dict[str, Any]],
        return_extracted_answer: bool = False,  # noqa: ARG002  run_eval.py of NeMo-RL passes it
    ) -> EnvironmentReturn:
        """Score a batch; every conversation ends with its first reply."""
        return single_turn_return(self._scorer.rewards(message_log_batch, metadata), metadata)

    def set_reference(self, rollouts: Sequence[Rollout]) -> None:
        """Hand the frozen model's rollouts to an environment that needs them."""
        if isinstance(self._scorer.environment, NeedsReference):
            self._scorer.environment.set_reference(rollouts)

    def summary(self, split: str) -> StepSummary | None:
        """See `StepScorer.summary`."""
        return self._scorer.summary(split)

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing: NeMo-RL declares the method and does not call it."""
        return batch, {}

    def shutdown(self) -> None:
        """Nothing is open."""


def single_turn_return(rewards: Sequence[float], metadata: list[Any]) -> EnvironmentReturn:
    """NeMo-RL's return value for conversations that are over.

    Observations are empty, for NeMo-RL appends them to the sequence that it trains on.
    """
    count = len(rewards)
    return EnvironmentReturn(
        observations=[{"role": "environment", "content": ""}] * count,
        metadata=metadata,
        next_stop_strings=[None] * count,
        rewards=torch.tensor(rewards, dtype=torch.float32),
        terminateds=torch.ones(count),
        answers=None,
    )
