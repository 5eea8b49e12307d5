"""Rewards of rollouts that NeMo-RL generates one by one, given when all of a batch are there.

NeMo-RL's asynchronous rollouts ask the environment for the reward of each conversation as soon as
it ends. A counterfactual set is never whole in such a call, and a failed score has no siblings
whose mean it could take. So the environment that they ask only ends the conversation, and the real
one is asked once, as by synchronous rollouts. Nothing waits for anything else, so nothing can
deadlock; scores begin when the last conversation of the batch has ended.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

#: What the environment is told of a message.
_LOG_KEYS = ("role", "content")


def scored_together(run: Callable[..., Any]) -> Callable[..., Any]:
    """NeMo-RL's `run_async_multi_turn_rollout`, with one call of the environment at its end."""
    signature = inspect.signature(run)

    def run_and_score(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        environments = call.arguments["task_to_env"]
        call.arguments["task_to_env"] = collecting(environments)
        batch, metrics = run(*call.args, **call.kwargs)
        environment = next(iter(environments.values()))
        rewards = rewards_of(environment, batch["message_log"], batch["extra_env_info"])
        batch["total_reward"] = rewards
        return batch, metrics | reward_metrics(rewards)

    return run_and_score


@contextmanager
def replaced(module: ModuleType, name: str, replacement: Any) -> Iterator[None]:
    """Replace `module.name` while the block runs."""
    original = getattr(module, name)
    setattr(module, name, replacement)
    try:
        yield
    finally:
        setattr(module, name, original)


def collecting(environments: Mapping[str, Any]) -> dict[str, Any]:
    """Stand-ins of the environments' actors that end every conversation and give no reward."""
    return {name: Collecting(actor) for name, actor in environments.items()}


@dataclass(frozen=True, slots=True)
class Collecting:
    """A stand-in for an environment's actor; it can be sent to another process."""

    actor: Any

    @property
    def step(self) -> SimpleNamespace:
        """Has `remote`, as a method of an actor has."""
        return SimpleNamespace(remote=end)

    @property
    def shutdown(self) -> Any:
        """Shut the actor itself down."""
        return self.actor.shutdown


def end(_messages: Any, metadata: list[Any]) -> Any:
    """End conversations without a reward, as an environment's actor would answer."""
    import ray

    return ray.put(single_turn_return([0.0] * len(metadata), metadata))


def single_turn_return(rewards: Sequence[float], metadata: list[Any]) -> Any:
    """NeMo-RL's `EnvironmentReturn` for conversations that are over.

    Observations are empty, for NeMo-RL appends them to the sequence that it trains on.
    """
    import torch
    from nemo_rl.environments.interfaces import EnvironmentReturn

    count = len(rewards)
    return EnvironmentReturn(
        observations=[{"role": "environment", "content": ""}] * count,
        metadata=metadata,
        next_stop_strings=[None] * count,
        rewards=torch.tensor(rewards, dtype=torch.float32),
        terminateds=torch.ones(count),
        answers=None,
    )


def rewards_of(
    environment: Any, conversations: Sequence[Sequence[Mapping[str, Any]]], metadata: Sequence[Any]
) -> Any:
    """Ask the actor for the rewards of whole groups by one call: a tensor [B], float32."""
    import ray

    logs = [[{key: m[key] for key in _LOG_KEYS} for m in messages] for messages in conversations]
    return ray.get(environment.step.remote(logs, list(metadata))).rewards


def reward_metrics(rewards: Any) -> dict[str, float]:
    """NeMo-RL's metrics of a batch that come from its rewards."""
    return {
        "mean_total_reward": float(rewards.mean()),
        "max_total_reward": float(rewards.max()),
        "min_total_reward": float(rewards.min()),
    }
