"""Python's packages, torch and the driver, GPUs and memory."""

import pytest

from equipoise.doctor.checks import GPUS
from equipoise.doctor.software import (
    host_memory,
    local_gpu,
    local_memory,
    nemo_rl_memory,
    python,
    torch_and_driver,
)
from equipoise.errors import EquipoiseError
from equipoise.installation.gpus import Driver, Gpu, TorchBuild

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 81559 * 2**20, 1 * 2**20, "9.0")
DRIVER = Driver("550.54.15", "12.4", (H100,))
TORCH = TorchBuild("2.11.0+cu126", "12.6")


@pytest.mark.parametrize(
    ("versions", "status", "said"),
    [
        ({"torch": "2.11.0", "rich": "14.0"}, "ok", "all 2 packages"),
        ({"torch": "2.8.0", "rich": "14.0"}, "failure", "torch is 2.8.0, not <3,>=2.9"),
        ({"torch": "2.11.0"}, "failure", "rich is missing"),
    ],
)
def test_packages_are_compared_with_what_is_asked_for(versions, status, said):
    (result,) = python(lambda: ["torch>=2.9,<3", "rich>=13.9"], versions.get)
    assert result.status == status
    assert said in result.says
    assert ("uv run" in result.remedy) == (status == "failure")


def test_this_python_has_what_the_project_asks_for():
    (result,) = python()
    assert result.status == "ok", result.says


def test_a_torch_that_the_driver_runs():
    result = torch_and_driver(DRIVER, TORCH, {}, lambda: 1)
    assert (result.status, "12.6" in result.says) == ("ok", True)
    assert torch_and_driver(None, TORCH, {}, lambda: 0).status == "ok"


def test_a_torch_for_a_newer_cuda_than_the_drivers():
    result = torch_and_driver(DRIVER, TorchBuild("2.15.0+cu132", "13.2"), {}, lambda: 0)
    assert result.status == "failure"
    assert "13.2" in result.says
    assert "12.4 at most" in result.says


def test_a_torch_without_cuda():
    result = torch_and_driver(DRIVER, TorchBuild("2.15.0+cpu", None), {}, lambda: 0)
    assert (result.status, "without CUDA" in result.says) == ("failure", True)


def test_gpus_that_torch_does_not_see():
    assert torch_and_driver(DRIVER, TORCH, {}, lambda: 0).status == "failure"
    hidden = torch_and_driver(DRIVER, TORCH, {"CUDA_VISIBLE_DEVICES": ""}, lambda: 0)
    assert hidden.status == "warning"
    assert "CUDA_VISIBLE_DEVICES=''" in hidden.says


def test_a_gpu_that_is_asked_for_and_missing(load):
    assert local_gpu(None, load("fairness", "--device", "cuda").config).status == "failure"
    assert local_gpu(None, load("fairness").config).status == "ok"


def test_a_gpu_that_somebody_uses(load):
    busy = Gpu(3, "NVIDIA A100", 80 * 10**9, 60 * 10**9, "8.0")
    result = local_gpu(Driver("1", "12", (H100, busy)), load("fairness").config)
    assert (result.check, result.status) == (GPUS, "warning")
    assert "GPU 3 60 of 80 GB" in result.says


def test_a_gpu_that_does_not_know_bfloat16(load):
    old = Driver("1", "12", (Gpu(0, "Tesla V100", 16 * 10**9, 0, "7.0"),))
    result = local_gpu(old, load("fairness", "--config", "nemo_configs/small.yaml").config)
    assert (result.status, "V100" in result.says) == ("warning", True)
    assert local_gpu(old, load("fairness").config).status == "ok"  # float32


def test_a_model_that_the_gpu_of_the_local_engine_cannot_hold(load):
    words = ("--config", "nemo_configs/small.yaml", "--model-name", "Qwen/Qwen2.5-14B-Instruct")
    config = load("fairness", *words, "--engine", "local").config
    assert local_memory(config, [H100]).status == "ok"
    with pytest.raises(EquipoiseError, match="the GPU has 24 GB"):
        local_memory(config, [Gpu(0, "NVIDIA A10", 24 * 10**9, 0, "8.6")])


def test_the_memory_model_is_compared_with_the_gpus_that_are_there(load):
    """Medium is planned for 80 GB; on 16 GB it cannot run, whatever the configuration says."""
    config = load("fairness", "--config", "nemo_configs/medium.yaml").config
    (fits,) = nemo_rl_memory(DRIVER, config)
    assert fits.status == "ok"
    small = Gpu(1, "NVIDIA T4", 16 * 10**9, 0, "7.5")
    results = list(nemo_rl_memory(Driver("1", "12", (H100, small)), config))
    assert {result.status for result in results} == {"failure"}
    assert "16" in results[0].says
    (unknown,) = nemo_rl_memory(None, config)
    assert unknown.status == "not checked"


@pytest.mark.parametrize(("has", "status"), [(400, "failure"), (500, "warning"), (1000, "ok")])
def test_a_host_holds_reference_swapped_weights_and_a_vllm_that_sleeps(load, has, status):
    """Large: 8 GPUs with 17.7 GB of each."""
    config = load("fairness", "--config", "nemo_configs/large.yaml").config
    (result,) = host_memory(config, has * 10**9)
    assert result.status == status
    assert "holds 425 GB at least" in result.says
    unknown = load("fairness", "--config", "nemo_configs/large.yaml", "--model-name=x/y").config
    assert list(host_memory(unknown, has)) == []
