"""Processes of NeMo-RL: what must be so before one imports it, and where our actors run."""

import sys
from typing import Any


def before_nemo_rl() -> None:
    """Call it first. It imports nothing that is not in Python, but for one package before 3.12."""
    if sys.version_info < (3, 12):
        # pydantic refuses typing's own TypedDict, which NeMo-RL, written for 3.13, uses.
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    # Not in the container's Pythons of driver and generation, but of training; it loads slowly.
    sys.modules["nemo_automodel"] = None  # type: ignore[assignment]


def beside_driver() -> dict[str, Any]:
    """Ray's options for an actor on the driver's node, the one that surely has our code and files.

    Call it in the driver. The actor takes no CPU, for NeMo-RL's workers may hold them all, and a
    head node may have none.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return {"num_cpus": 0, "scheduling_strategy": strategy}
