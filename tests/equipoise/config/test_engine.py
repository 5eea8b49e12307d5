"""Which engine `auto` is."""

import pytest

from equipoise.config.flags import CONFIG_FOLDER
from tests.nemo_rl_checkout import write_checkout

SMALL = ("--config", str(CONFIG_FOLDER / "small.yaml"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder that looks like NeMo-RL, and a GPU."""
    write_checkout(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("equipoise.config.load.count_gpus", lambda: 1)


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch):
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (SMALL, "nemo_rl"),
        ((*SMALL, "--engine", "local"), "local"),
        ((*SMALL, "--device", "cpu"), "local"),
        ((), "local"),
    ],
)
def test_auto_with_nemo_rl(words, engine, load):
    assert load(*words).engine == engine


def test_auto_is_decided_once(load, monkeypatch):
    """NeMo-RL's torch may see other GPUs than ours."""
    monkeypatch.setenv("EQUIPOISE_LAUNCHED", "1")
    assert load(*SMALL).engine == "nemo_rl"


def test_auto_without_nemo_rl(load):
    assert load(*SMALL).engine == "local"
