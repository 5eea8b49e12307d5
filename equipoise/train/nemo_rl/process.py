"""Preparation of a process that will import NeMo-RL's algorithms."""

import sys


def before_nemo_rl() -> None:
    """Call it first. It imports nothing that is not in Python, but for one package before 3.12."""
    if sys.version_info < (3, 12):
        # pydantic refuses typing's own TypedDict, which NeMo-RL, written for 3.13, uses.
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    # Not in the container's Pythons of driver and generation, but of training; it loads slowly.
    sys.modules["nemo_automodel"] = None  # type: ignore[assignment]
