"""Megatron's form of a model: whole, broken off, and made by one of two runs that start at once."""

from threading import Event, Thread

import pytest

from equipoise.config.nemo_rl import installation
from equipoise.config.nemo_rl.installation import (
    broken_conversion,
    conversion_of,
    converting,
    is_converted,
)
from equipoise.doctor.machine import folders
from tests.equipoise.doctor.conftest import LARGE, MEDIUM
from tests.refusals import refusal

MODEL = "meta-llama/Llama-3.3-70B-Instruct"


def convert(folder):
    """Write what Megatron-Bridge writes, as empty files."""
    (folder / "iter_0000000").mkdir(parents=True, exist_ok=True)
    for name in ("iter_0000000/.metadata", "iter_0000000/run_config.yaml", "latest_train_state.pt"):
        (folder / name).touch()


@pytest.fixture
def environment(tmp_path):
    return {"NRL_MEGATRON_CHECKPOINT_DIR": str(tmp_path / "megatron"), "SLURM_JOB_ID": "1"}


def test_an_empty_iteration_is_broken_off_and_named(environment, case):
    folder = conversion_of(MODEL, environment)
    assert broken_conversion(folder) is None
    (folder / "iter_0000000").mkdir(parents=True)
    assert not is_converted(folder)
    large = case("fairness", *LARGE, environment=environment)
    told = [finding for finding in folders(large) if "broken off" in finding.says]
    assert [f"rm -r {folder}" in finding.remedy for finding in told] == [True]
    start = converting(large.config, MODEL, environment, pytest.fail)
    with refusal("megatron.broken-conversion", str(folder)), start:
        pytest.fail("it goes on")
    convert(folder)
    assert is_converted(folder)
    with converting(large.config, MODEL, environment, pytest.fail):
        pass


def test_a_second_run_waits_until_the_first_has_converted(environment, case, monkeypatch):
    monkeypatch.setattr(installation, "_INTERVAL", 0.02)
    config, folder = case("fairness", *LARGE).config, conversion_of(MODEL, environment)
    told, waits, seen, end = [], Event(), [], Event()

    def second():
        def say(text):
            told.append(text)
            waits.set()

        with converting(config, MODEL, environment, say):
            seen.append(is_converted(folder))
        end.set()

    with converting(config, MODEL, environment, pytest.fail):
        Thread(target=second, daemon=True).start()
        assert waits.wait(20)
        assert not seen
        convert(folder)
        assert end.wait(20), "the first run still trains, and the second goes on"
    assert seen == [True]
    assert str(folder) in told[0]


def test_other_backends_convert_nothing(environment, case):
    with converting(case("fairness", *MEDIUM).config, MODEL, environment, pytest.fail):
        assert not conversion_of(MODEL, environment).parent.exists()
