"""Which engine `auto` is, and what is said when it is not there."""

import re
from pathlib import Path

import pytest

from equipoise.config import engine, load_config, parse_flags, refuse_missing_engine
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.errors import EquipoiseError
from tests.nemo_rl_checkout import write_checkout

SMALL = ("--config", str(CONFIG_FOLDER / "small.yaml"))
LARGE = ("--config", str(CONFIG_FOLDER / "large.yaml"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder that looks like NeMo-RL, and a GPU."""
    write_checkout(tmp_path)
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


@pytest.mark.parametrize("words", [("--use-nemo",), ("--use-nemo", "--model-size=small")])
def test_missing_nemo_rl_is_refused_with_the_command_that_needs_none(load, words):
    loaded = load(*words)
    with pytest.raises(EquipoiseError, match="NeMo-RL is not") as caught:
        refuse_missing_engine(loaded.config, loaded.engine)
    command = re.search("`uv run (.*)`", caught.value.remedy)
    assert command
    recipe, *instead = command[1].split()
    assert Path(recipe).is_file()
    loaded = load(*instead)
    assert loaded.engine == "local"
    refuse_missing_engine(loaded.config, loaded.engine)


def test_a_model_that_the_machine_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr(engine, "ram_bytes", lambda: 16 * 10**9)
    large = ("--model-name", "meta-llama/Llama-3.3-70B-Instruct", "--device=cpu", "--engine=local")
    config = load_config("fairness", parse_flags("", large)).config
    with pytest.raises(EquipoiseError, match=r"at least 2\d\d GB .* has 16 GB"):
        engine.refuse_missing_engine(config, "local")


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct", "un/known"])
def test_a_model_that_fits_or_is_not_known_is_not_refused(name, monkeypatch):
    monkeypatch.setattr(engine, "ram_bytes", lambda: 16 * 10**9)
    words = ("--model-name", name, "--device=cpu", "--engine=local")
    engine.refuse_missing_engine(load_config("fairness", parse_flags("", words)).config, "local")


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(engine, "_count_gpus", lambda: 0)
    config = load_config("fairness", parse_flags("", ("--device=cuda",))).config
    with pytest.raises(EquipoiseError, match="finds no GPU"):
        engine.refuse_missing_engine(config, "local")


def test_a_rehearsal_that_lacks_nemo_rl_is_not_told_to_rehearse(monkeypatch):
    def missing():
        raise EquipoiseError("there is no NeMo-RL", "Set NEMO_RL_PATH.")

    monkeypatch.setattr(engine, "find_installation", missing)
    config = load_config("fairness", parse_flags("", ())).config
    for rehearse in (True, False):
        with pytest.raises(EquipoiseError) as error:
            engine.refuse_missing_engine(config, "nemo_rl", rehearse=rehearse)
        assert ("--rehearse" in error.value.remedy) is not rehearse
