"""Exits on errors: a few clear lines and an exit code."""

import errno
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from equipoise.files.console import Reporter, guard_terminal, printing_notes
from equipoise.files.disk import DamagedFileError
from equipoise.files.errors import EquipoiseError

# --- interrupts -----------------------------------------------------------------------------------
# Ctrl-C and SIGTERM: training ends its step and keeps a checkpoint, all else stops at once.
#
# NeMo-RL, which has its own handlers, samples before its first step under training's rule: it ends
# the batch of replies, which is kept.


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = (
    "stopping after this step, with a checkpoint; before the first step, after this batch of "
    "replies, which is kept; again to stop at once"
)


class Stopped(BaseException):
    """The user stopped the run; what is finished is kept.

    It is not an `Exception`, because libraries catch those and would carry on.
    """


@contextmanager
def raising() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise `Stopped` while the block runs.

    An error after a signal becomes `Stopped` too: an interrupted library may fail during its
    cleanup, and that error would hide the signal.
    """
    signalled = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        raise Stopped

    with _handler(stop):
        try:
            yield
        except Exception as error:
            if signalled:
                raise Stopped(f"stopped, and while stopping: {error}") from error
            raise


@contextmanager
def deferring(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield a check whether to stop after this step; the first signal requests that and says so.

    A second one raises `Stopped`.
    """
    requested = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise Stopped
        requested = True
        say(_STOPPING)

    with _handler(ask):
        yield lambda: requested


@contextmanager
def _handler(function: Any) -> Iterator[None]:
    before = {number: signal.signal(number, function) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- exits ----------------------------------------------------------------------------------------


EXIT_STOPPED = 130
_DISK_REMEDIES = {
    errno.ENOSPC: "Free some space; a run continues with --resume.",
    errno.EDQUOT: "Your quota is used up: free some space; a run continues with --resume.",
    errno.EACCES: "Choose a folder that you may write to with --output-dir.",
    errno.EPERM: "Choose a folder that you may write to with --output-dir.",
    errno.ENAMETOOLONG: "Choose a shorter name: no part of a path has more than 255 bytes.",
    errno.EROFS: "The file system is read-only: choose another folder with --output-dir.",
}
_MEMORY_REMEDY = (
    "Lower policy.train_micro_batch_size and equipoise.evaluation.batch_size, shorten "
    "policy.generation.max_new_tokens, train a LoRA with --lora-rank, or take a smaller model."
)


def guarded(action: Callable[[Reporter], None]) -> int:
    """Run `action` and give the exit code: 0, 1 for a failure, 2 for wrong usage, 130 if stopped.

    Errors that a user can fix become a few clear lines; a bug keeps its traceback.
    """
    guard_terminal()
    errors = Reporter.for_errors()
    try:
        reporter = Reporter()
        with raising(), printing_notes(reporter):
            action(reporter)
    except EquipoiseError as error:
        errors.say(f"error [{error.code}]: {error}")
        return error.exit_code
    except Stopped as stopped:
        errors.say(str(stopped) or "stopped")
        return EXIT_STOPPED
    except Exception as error:  # noqa: BLE001  what has no remedy is printed whole, and escaped
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            errors.say("stopped: nothing reads the output any more")
            return EquipoiseError.exit_code
        remedied = _remedied(error)
        if remedied is None:
            errors.say(traceback.format_exc())
            return EquipoiseError.exit_code
        errors.say(f"error [{remedied.code}]: {remedied}")
        return remedied.exit_code
    return 0


def _output_is_closed() -> bool:
    """Whether the output's reader has closed, as `| head` does; if so, discard further output."""
    descriptor = sys.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, 0)
    closed = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return closed


def _remedied(error: Exception) -> EquipoiseError | None:
    """Explain a damaged file, a full disk or exhausted memory; None for other errors.

    torch and safetensors raise exceptions of their own for a full disk, with the system's message
    inside.
    """
    if isinstance(error, DamagedFileError):
        message, remedy = f"a file is damaged: {error}", "Put it back, or start a new run."
        return EquipoiseError(error.code, message, remedy)
    of_gpu = isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", ()))
    of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    of_cpu = of_torch or isinstance(error, MemoryError)
    if of_cpu or of_gpu:
        first_line = next(iter(str(error).splitlines()), "")
        message = f"{'this machine' if of_cpu else 'the GPU'}'s memory is used up. {first_line}"
        return EquipoiseError("machine.full-memory", message.strip(), _MEMORY_REMEDY)
    number = error.errno if isinstance(error, OSError) else None
    if number is None and os.strerror(errno.ENOSPC) in str(error):
        number = errno.ENOSPC
    if number not in _DISK_REMEDIES:
        return None
    where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
    message = f"{os.strerror(number)}{where}"
    return EquipoiseError("machine.disk-trouble", message, _DISK_REMEDIES[number])
