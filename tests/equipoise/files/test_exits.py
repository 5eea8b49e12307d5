"""What an error looks like: a few lines and the right exit code, a traceback for a bug alone."""

import errno
from pathlib import Path

import pytest
import torch

from equipoise.files.disk import DamagedFileError
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import EXIT_STOPPED, Stopped, guarded


def raising(error: BaseException):
    def action(reporter) -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("key.wrong", "wrong key", "Fix it."), 2, "error [key.wrong]: wrong key"),
        (EquipoiseError("judge.down", "judge is down", "Start it."), 1, "Start it."),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "Free some space"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 1, "a shorter name"),
        (OSError(errno.EACCES, "Permission denied", "/x/y"), 1, "--output-dir"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 1, "Free some space"),
        (Stopped(), EXIT_STOPPED, "nothing is kept"),
        (Stopped("stopped; --resume x continues it"), EXIT_STOPPED, "--resume x"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB."), 1, "train_micro_batch_size"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), 1, "this machine's"),
        (MemoryError(), 1, "--lora-rank"),
        (
            DamagedFileError("file.cut", Path("x/provenance.json"), "cut off"),
            1,
            "x/provenance.json",
        ),
    ],
)
def test_what_a_user_can_put_right_is_said_in_a_few_lines(error, code, said, capsys):
    assert guarded(raising(error)) == code
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) <= 4
    assert "Traceback" not in message


@pytest.mark.parametrize("bug", [KeyError("x"), OSError(errno.EIO, "input/output error")])
def test_a_bug_keeps_its_traceback(bug, capsys):
    assert guarded(raising(bug)) == 1
    message = capsys.readouterr().err
    assert message.startswith("Traceback")
    assert message.rstrip().endswith(f"{type(bug).__name__}: {bug}")
