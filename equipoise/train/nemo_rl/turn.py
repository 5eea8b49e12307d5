"""An environment's answer to NeMo-RL. The Python of generation loads this, and not actor.py."""

from collections.abc import Sequence
from typing import Any

import torch
from nemo_rl.environments.interfaces import EnvironmentReturn


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
