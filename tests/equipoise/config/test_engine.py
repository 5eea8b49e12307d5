"""Which engine `auto` is."""

import pytest

from equipoise.config.compose import CONFIG_FOLDER
from tests.nemo_rl_checkout import write_checkout

SMALL, MEDIUM = (("--config", str(CONFIG_FOLDER / f"{s}.yaml")) for s in ("small", "medium"))


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch):
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (SMALL, "nemo_rl"),
        ((*SMALL, "--engine", "local"), "local"),
        ((*SMALL, "--device", "cpu"), "local"),
        ((), "local"),
    ],
)
def test_auto_with_nemo_rl_and_a_gpu(words, engine, load, monkeypatch, tmp_path):
    write_checkout(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("equipoise.config.load.count_gpus", lambda: 1)
    assert load(*words).engine == engine


def test_auto_without_nemo_rl_is_what_the_scale_needs_and_is_decided_once(load, monkeypatch):
    """NeMo-RL's torch may see other GPUs than ours."""
    assert (load(*SMALL).engine, load(*MEDIUM).engine) == ("local", "nemo_rl")
    monkeypatch.setenv("EQUIPOISE_LAUNCHED", "1")
    assert load(*SMALL).engine == "nemo_rl"
