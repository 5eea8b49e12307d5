import os
import signal

import pytest

from equipoise.files.exits import Stopped, deferring, raising


def send(number: signal.Signals) -> None:
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
