"""Which engine `auto` is, and what is said when it is not there."""

import pytest

from equipoise.config import refuse_missing_engine
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.engines.nemo_rl import installation
from equipoise.errors import EquipoiseError

SMALL = ("--config", str(CONFIG_FOLDER / "small.yaml"))
LARGE = ("--config", str(CONFIG_FOLDER / "large.yaml"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder that looks like NeMo-RL, and a GPU."""
    for name, text in installation._MARKS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise RuntimeError('nothing may import it') # {text}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("equipoise.config.engine._count_gpus", lambda: 1)


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


@pytest.mark.usefixtures("installed")
def test_an_engine_that_is_there_is_not_refused(load):
    refuse_missing_engine(load(*SMALL).config, "nemo_rl")


@pytest.mark.usefixtures("installed")
def test_a_rehearsal_needs_no_gpu(load):
    refuse_missing_engine(load(*LARGE).config, "nemo_rl", rehearse=True)


def test_auto_is_decided_once(load, monkeypatch):
    """NeMo-RL's torch may see other GPUs than ours."""
    monkeypatch.setenv("EQUIPOISE_LAUNCHED", "1")
    assert load(*SMALL).engine == "nemo_rl"


def test_auto_without_nemo_rl(load):
    loaded = load(*SMALL)
    assert loaded.engine == "local"
    refuse_missing_engine(loaded.config, loaded.engine)


def test_a_missing_engine_says_what_it_needs_and_what_to_run_instead(load):
    loaded = load(*LARGE)
    with pytest.raises(EquipoiseError, match="nodes of 8 GPUs, and NeMo-RL is not") as caught:
        refuse_missing_engine(loaded.config, loaded.engine)
    assert "--config nemo_configs/small.yaml" in caught.value.remedy
    assert "NEMO_RL_PATH" in caught.value.remedy
    assert caught.value.exit_code == 1
