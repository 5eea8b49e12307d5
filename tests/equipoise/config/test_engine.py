"""Which engine `auto` is, and what is said when it is not there."""

import pytest

from equipoise.config import refuse_missing_engine
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.errors import EquipoiseError

SMALL = ("--config", str(CONFIG_FOLDER / "small.yaml"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder that looks like NeMo-RL, and a GPU."""
    package = tmp_path / "nemo_rl" / "algorithms"
    package.mkdir(parents=True)
    (package / "grpo.py").write_text("raise RuntimeError('looking for it must not import it')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("equipoise.config.engine._has_cuda", lambda: True)


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


def test_auto_without_nemo_rl(load):
    loaded = load(*SMALL)
    assert loaded.engine == "local"
    refuse_missing_engine(loaded.config, loaded.engine)


def test_the_placeholder_of_that_name_is_not_nemo_rl(load, tmp_path, monkeypatch):
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert load(*SMALL).engine == "local"


def test_a_missing_engine_says_what_it_needs_and_what_to_run_instead(load):
    loaded = load("--config", str(CONFIG_FOLDER / "large.yaml"))
    with pytest.raises(EquipoiseError, match="4 nodes of 8 GPUs") as caught:
        refuse_missing_engine(loaded.config, loaded.engine)
    assert "--config nemo_configs/small.yaml" in caught.value.remedy
    assert caught.value.exit_code == 1
