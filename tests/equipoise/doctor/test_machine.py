"""GPUs and memory."""

import pytest

from equipoise.doctor import machine
from equipoise.doctor.machine import host_memory, local_gpus, local_memory, nemo_rl_memory
from tests.equipoise.doctor.conftest import LARGE, MEDIUM, SMALL
from tests.refusals import refusal

H100 = 85 * 10**9


@pytest.fixture
def with_gpus(monkeypatch):
    """Let torch see GPUs of these bytes."""

    def have(*gpus):
        monkeypatch.setattr(machine, "count_gpus", lambda: len(gpus))
        monkeypatch.setattr(machine, "gpu_memory", lambda: list(gpus))

    return have


def status(case):
    (finding,) = local_gpus(case)
    return finding.status


def test_a_gpu_that_is_asked_for_and_missing(case, with_gpus):
    with_gpus()
    assert status(case("fairness", "--device", "cuda")) == "failure"
    assert status(case("fairness")) == "ok"


def test_a_gpu_that_torch_does_not_see(case, with_gpus, monkeypatch):
    """As with a torch without CUDA, or for a newer one than the driver's."""
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}")
    with_gpus()
    assert status(case("fairness")) == "warning"
    with_gpus(H100)
    assert status(case("fairness")) == "ok"


def test_a_model_that_the_gpu_of_the_local_engine_cannot_hold(case, with_gpus):
    words = (*SMALL, "--model-name", "Qwen/Qwen2.5-14B-Instruct", "--engine", "local")
    with_gpus(H100)
    assert local_memory(case("fairness", *words)).status == "ok"
    with_gpus(24 * 10**9)
    with refusal("gpu.small-memory", "24 GB"):
        local_memory(case("fairness", *words))


def test_the_memory_model_is_compared_with_the_gpus_that_are_there(case, with_gpus):
    """Medium is planned for 80 GB; on 16 GB it cannot run, whatever the configuration says."""
    config = case("fairness", *MEDIUM).config
    for gpus, expected in (((H100,), "ok"), ((H100, 16 * 10**9), "failure"), ((), "not checked")):
        with_gpus(*gpus)
        assert {result.status for result in nemo_rl_memory(config)} == {expected}


@pytest.mark.parametrize(("has", "status"), [(400, "failure"), (500, "warning"), (1000, "ok")])
def test_a_host_holds_reference_swapped_weights_and_a_vllm_that_sleeps(case, has, status):
    """Large: 8 GPUs with 17.7 GB of each."""
    (result,) = host_memory(case("fairness", *LARGE).config, has * 10**9)
    assert result.status == status
    assert "holds 425 GB at least" in result.says
    unknown = case("fairness", *LARGE, "--model-name=x/y").config
    assert list(host_memory(unknown, has)) == []
