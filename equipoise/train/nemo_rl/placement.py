"""Placement of actors: on the driver's node, the one that surely has our code and files."""

from typing import Any


def beside_driver() -> dict[str, Any]:
    """Ray's options for an actor there; call it in the driver.

    It takes no CPU, for NeMo-RL's workers may hold them all, and a head node may have none.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return {"num_cpus": 0, "scheduling_strategy": strategy}
