"""The one Ray actor that serves every environment to NeMo-RL."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from environments.awaited_sets import AwaitedSets
from environments.chat.accounting import spent
from equipoise.config import LoadedConfig
from equipoise.run.directory import RunDirectory
from equipoise.run.job import score_within_budget
from equipoise.run.rollouts import choose, read_rollouts
from equipoise.run.task import build_environment
from equipoise.train.nemo_rl.process import WAITING
from equipoise.train.nemo_rl.scoring import (
    MessageLog,
    StepScorer,
    StepSummary,
    single_turn_return,
    to_rollouts,
)


@ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=WAITING)
class EnvironmentActor(EnvironmentInterface):
    """Scores in a process of its own; its arguments suffice to restart it."""

    def __init__(
        self,
        class_name: str,
        settings: Mapping[str, Any],
        cache_dir: str,
        reference: str,
        generations: int,
        kept: int,
        seed: int,
        limit: float = 1800.0,  # seconds from a set's first reply to its last
    ) -> None:
        environment = build_environment(class_name, settings, cache_dir)
        if environment.reference_generations:
            environment.set_reference(read_rollouts(Path(reference)))
        self._scorer = StepScorer(environment, partial(choose, limit=kept, seed=seed))
        self._generations = generations
        self._sets = AwaitedSets(
            partial(score_within_budget, environment),
            scope=environment.scope,
            set_size=environment.set_size,
            limit=limit,
            on_scores=self._scorer.keep,
        )

    async def step(
        self, message_log_batch: Sequence[MessageLog], metadata: list[dict[str, Any]]
    ) -> EnvironmentReturn:
        """Score a batch of whole sets, or one reply when its set is there.

        NeMo-RL's synchronous rollouts bring the former, its asynchronous ones the latter. Every
        conversation ends with its first reply.
        """
        self._scorer.count(metadata)
        rollouts = to_rollouts(message_log_batch, metadata)
        if len(rollouts) > 1:
            rewards = await asyncio.to_thread(self._scorer.rewards, rollouts)
        else:
            call = ray.get_runtime_context().get_task_id()  # the same where Ray tries it again
            rewards = [(await self._sets.ask(rollouts[0], self._generations, call)).number]
        return single_turn_return(rewards, metadata)

    def summary(self, split: str) -> StepSummary | None:
        return self._scorer.summary(split)

    def spent(self) -> dict[str, dict[str, float]]:
        """Count what this process has asked of other models since it started."""
        return spent()

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing: NeMo-RL declares the method and does not call it."""
        return batch, {}

    def shutdown(self) -> None:
        """Nothing is open; asynchronous training calls it at its end."""


def start_environment(loaded: LoadedConfig, run: RunDirectory) -> Any:
    """Start the actor on the driver's node, where it reads what the driver reads."""
    config, ours = loaded.config, loaded.config.equipoise
    node = ray.get_runtime_context().get_node_id()
    # Without a CPU of its own, for NeMo-RL's workers may hold them all.
    return EnvironmentActor.options(
        num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
    ).remote(
        ours.environment,
        loaded.env_settings.model_dump(mode="json"),
        str(Path(ours.cache_dir).expanduser().resolve()),
        str(run.reference.resolve()),
        config.grpo.num_generations_per_prompt,
        ours.training_rollouts.sets,
        config.grpo.seed,
    )


@dataclass(frozen=True, slots=True)
class Calls:
    """An actor by plain calls, which wait for its answers."""

    actor: Any

    def __getattr__(self, method: str) -> Callable[..., Any]:
        remote = getattr(self.actor, method).remote
        return lambda *arguments: ray.get(remote(*arguments))
