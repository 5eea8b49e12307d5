"""Processes of NeMo-RL: what must be so before one imports it, and in which replies wait."""

import os
import sys
from typing import Any

#: More than the replies that can wait for their sets.
WAITING = 100_000


def before_nemo_rl() -> None:
    """Call it first. It imports only the standard library, and one package before Python 3.12."""
    if sys.version_info < (3, 12):
        # pydantic refuses typing's own TypedDict, which NeMo-RL, written for 3.13, uses.
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    # Not in the container's Pythons of driver and generation, but of training; it loads slowly.
    sys.modules["nemo_automodel"] = None  # type: ignore[assignment]
    # Its objects that outlive an error call Ray when they are deleted: no second Ray for that.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")


def with_room_to_wait(generation: Any, replies: int) -> Any:
    """Return NeMo-RL's generation, in whose event loops so many replies can wait for rewards.

    A reply waits for its set in a thread of the loop's default executor, which has 32 at most: the
    rest of the set could not come. The loop runs this generator before it asks for a reward. The
    class is local, so it travels to NeMo-RL's own actors by value: they need not have Equipoise.
    """

    class Generation:
        def __init__(self, generation: Any) -> None:
            self._generation = generation
            self._wide: Any = None  # made where it runs, for it cannot be sent

        def __reduce__(self) -> Any:
            return Generation, (self._generation,)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._generation, name)

        async def generate_async(self, *args: Any, **kwargs: Any) -> Any:
            import asyncio
            import weakref
            from concurrent.futures import ThreadPoolExecutor

            self._wide = self._wide or weakref.WeakSet()
            loop = asyncio.get_running_loop()
            if loop not in self._wide:
                self._wide.add(loop)
                loop.set_default_executor(ThreadPoolExecutor(replies))
            async for row, output in self._generation.generate_async(*args, **kwargs):
                yield row, output

    return Generation(generation)
