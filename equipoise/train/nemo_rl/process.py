"""Processes of NeMo-RL: what must be so before one imports it, where actors run, why one failed."""

import sys
from typing import Any

#: Characters of an error that a message shows.
_SHOWN = 500


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


def reason_of(error: Exception) -> str:
    """Name an error of NeMo-RL's in one line; Ray's own texts are tracebacks."""
    cause = getattr(error, "cause", None) or error  # of a task of Ray's
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    died = type(cause).__module__.startswith("ray.")  # its last line is the error in the actor
    text = " ".join(lines[-1:] if died else lines)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{type(cause).__name__}: {shown}"
