"""Each engine checks the machine at a start, and a refusal names the remedy."""

import re
from pathlib import Path

import pytest

from equipoise.doctor import CHECKS, machine, refuse_unfit
from equipoise.doctor.machine import usable_installation
from tests.equipoise.doctor.conftest import LARGE, SMALL
from tests.refusals import refusal

LLAMA = ("--model-name", "meta-llama/Llama-3.3-70B-Instruct", "--device=cpu", "--engine=local")


@pytest.fixture
def start(case):
    """Ask what a start asks."""
    return lambda *words: refuse_unfit(case("fairness", *words, purpose="start"), pytest.fail)


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch):
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)


@pytest.mark.parametrize("words", [(), SMALL, (*SMALL, "--model-name=un/known")])
def test_the_local_engine_starts_here(words, start):
    start(*words, "--engine=local")


def test_missing_nemo_rl_is_refused_with_what_it_needs_and_the_command_that_needs_none(start):
    with refusal("nemo-rl.no-installation", "nodes of 8 GPUs", "NEMO_RL_PATH") as caught:
        start(*LARGE)
    command = re.search("`uv run (.*)`", caught.value.remedy)
    assert command
    recipe, *instead = command[1].split()
    assert Path(recipe).is_file()
    start(*instead)


def test_a_model_that_the_machine_cannot_hold_is_refused_and_one_that_fits_is_not(
    monkeypatch, start
):
    monkeypatch.setattr(machine, "ram_bytes", lambda: 16 * 10**9)
    with refusal("gpu.small-memory", "16 GB"):
        start(*LLAMA)
    for name in ("Qwen/Qwen2.5-0.5B-Instruct", "un/known"):
        start("--model-name", name, "--device=cpu", "--engine=local")


def test_a_rehearsal_that_lacks_nemo_rl_is_not_told_to_rehearse():
    with refusal("nemo-rl.no-installation", "and a CPU") as error:
        usable_installation("a CPU")
    assert "--rehearse" not in error.value.remedy


def test_a_start_asks_neither_the_network_nor_the_driver():
    names = {check.name for check in CHECKS if check.starts}
    assert names == {"NeMo-RL", "GPUs", "memory"}
