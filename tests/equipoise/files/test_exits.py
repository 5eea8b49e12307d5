"""Errors and signals: a few lines and an exit code, a traceback for a bug alone."""

import errno
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
import torch

from environments.dharma.policy import PolicyError
from environments.yaml_file import YamlFileError
from equipoise.files.disk import DamagedFileError
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import EXIT_STOPPED, Stopped, deferring, guarded, raising
from equipoise.files.records import DataError


def failing(error):
    def action(reporter):
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
        (Stopped(), EXIT_STOPPED, "stopped"),
        (Stopped("stopped; --resume x continues it"), EXIT_STOPPED, "--resume x"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB."), 1, "train_micro_batch_size"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), 1, "this machine's"),
        (MemoryError(), 1, "this machine's memory is used up"),
        (
            DamagedFileError("file.cut", Path("x/provenance.json"), "cut off"),
            1,
            "x/provenance.json",
        ),
    ],
)
def test_what_a_user_can_put_right_is_said_in_a_few_lines(error, code, said, capsys):
    assert guarded(failing(error)) == code
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) <= 4
    assert "Traceback" not in message


@pytest.mark.parametrize("bug", [KeyError("x"), OSError(errno.EIO, "input/output error")])
def test_a_bug_keeps_its_traceback(bug, capsys):
    assert guarded(failing(bug)) == 1
    message = capsys.readouterr().err
    assert message.startswith("Traceback")
    assert message.rstrip().endswith(f"{type(bug).__name__}: {bug}")


def send(number):
    os.kill(os.getpid(), number)


def test_an_error_after_a_signal_does_not_hide_it():
    """As OmegaConf's, which puts a flag back where the signal has left half a list."""
    with pytest.raises(Stopped, match="half a list"), raising():
        try:
            send(signal.SIGINT)
        finally:
            raise AttributeError("half a list")


def test_an_error_without_a_signal_stays_itself():
    with pytest.raises(AttributeError), raising():
        raise AttributeError("a bug")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_training_the_first_signal_asks_and_the_second_stops(number):
    with pytest.raises(Stopped), raising():
        send(number)  # outside training it stops at once
    said = []
    with deferring(said.append) as stop:
        assert not stop()
        send(number)
        assert stop()
        assert "again to stop at once" in said[0]
        with pytest.raises(Stopped):
            send(number)


def test_the_handlers_before_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with raising(), deferring(print):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "error",
    [
        UsageError("disk.full", "the disk is full", "Free some space."),
        PolicyError("policy.no-tests", "holds no tests"),
        DataError("rows.invalid", Path("a.csv"), "table", ["line 1: no cell"]),
        DamagedFileError("file.cut", Path("a.json"), "cut off", line=3),
        YamlFileError("yaml.long", Path("a.yaml"), ["longer than 9 bytes"]),
    ],
)
def test_an_error_comes_whole_from_another_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.code, str(copy), vars(copy)) == (error.code, str(error), vars(error))
    assert error.code not in str(error)


def test_a_reader_that_has_gone_ends_it_without_a_traceback(monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert guarded(lambda _: print("x" * 100_000, flush=True)) == 1
    told = capfd.readouterr().err
    assert "nothing reads the output" in told and "Traceback" not in told
