"""Python's packages, torch and the driver, GPUs and memory."""

import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from equipoise.machine import software
from equipoise.machine.checks import Case
from equipoise.machine.software import (
    Driver,
    Gpu,
    TorchBuild,
    hidden_by,
    host_memory,
    local_gpus,
    local_memory,
    nemo_rl_memory,
    packages_as_required,
    parse_driver,
    python,
    read_driver,
    torch_and_driver,
    torch_build,
)
from tests.equipoise.machine.conftest import LARGE, MEDIUM, SMALL
from tests.refusals import refusal

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
    result = packages_as_required(["torch>=2.9,<3", "rich>=13.9"], versions.get)
    assert result.status == status
    assert said in result.says


def test_this_python_has_what_the_project_asks_for():
    (result,) = python(Case())
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


@pytest.fixture
def with_gpus(monkeypatch):
    """The driver of the machine has these."""

    def have(*gpus):
        monkeypatch.setattr(software, "read_driver", lambda: Driver("1", "12", gpus))

    return have


def test_a_gpu_that_is_asked_for_and_missing(case, with_gpus):
    with_gpus()
    assert local_gpus(case("fairness", "--device", "cuda")).status == "failure"
    assert local_gpus(case("fairness")).status == "ok"


def test_a_gpu_that_somebody_uses(case, with_gpus):
    with_gpus(H100, Gpu(3, "NVIDIA A100", 80 * 10**9, 60 * 10**9, "8.0"))
    result = local_gpus(case("fairness"))
    assert (result.status, "GPU 3 60 of 80 GB" in result.says) == ("warning", True)


def test_a_gpu_that_does_not_know_bfloat16(case, with_gpus):
    with_gpus(Gpu(0, "Tesla V100", 16 * 10**9, 0, "7.0"))
    result = local_gpus(case("fairness", *SMALL))
    assert (result.status, "V100" in result.says) == ("warning", True)
    assert local_gpus(case("fairness")).status == "ok"  # float32


def test_a_model_that_the_gpu_of_the_local_engine_cannot_hold(case, with_gpus):
    words = (*SMALL, "--model-name", "Qwen/Qwen2.5-14B-Instruct", "--engine", "local")
    with_gpus(H100)
    assert local_memory(case("fairness", *words)).status == "ok"
    with_gpus(Gpu(0, "NVIDIA A10", 24 * 10**9, 0, "8.6"))
    with refusal("gpu.small-memory", "24 GB"):
        local_memory(case("fairness", *words))


def test_the_memory_model_is_compared_with_the_gpus_that_are_there(case):
    """Medium is planned for 80 GB; on 16 GB it cannot run, whatever the configuration says."""
    config = case("fairness", *MEDIUM).config
    (fits,) = nemo_rl_memory(DRIVER, config)
    assert fits.status == "ok"
    small = Gpu(1, "NVIDIA T4", 16 * 10**9, 0, "7.5")
    results = list(nemo_rl_memory(Driver("1", "12", (H100, small)), config))
    assert {result.status for result in results} == {"failure"}
    assert "16" in results[0].says
    (unknown,) = nemo_rl_memory(None, config)
    assert unknown.status == "not checked"


@pytest.mark.parametrize(("has", "status"), [(400, "failure"), (500, "warning"), (1000, "ok")])
def test_a_host_holds_reference_swapped_weights_and_a_vllm_that_sleeps(case, has, status):
    """Large: 8 GPUs with 17.7 GB of each."""
    (result,) = host_memory(case("fairness", *LARGE).config, has * 10**9)
    assert result.status == status
    assert "holds 425 GB at least" in result.says
    unknown = case("fairness", *LARGE, "--model-name=x/y").config
    assert list(host_memory(unknown, has)) == []


# What nvidia-smi prints, in its form; the texts were not made by a GPU here.
ROWS = """\
0, NVIDIA H100 80GB HBM3, 81559, 4, 550.54.15, 9.0
1, NVIDIA H100 80GB HBM3, 81559, 70012, 550.54.15, 9.0
"""
PAGE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
"""


def test_gpus_and_driver():
    driver = parse_driver(ROWS, PAGE)
    assert (driver.version, driver.cuda) == ("550.54.15", "12.4")
    assert [gpu.index for gpu in driver.gpus] == [0, 1]
    assert driver.gpus[1].used == 70012 * 2**20
    assert driver.gpus[0].capability == "9.0"


def test_what_a_gpu_does_not_say():
    """One whose memory is the machine's, as Grace Blackwell's on a desk."""
    driver = parse_driver("0, NVIDIA GB10, [N/A], [N/A], 580.95.05, 12.1\n", "")
    assert (driver.gpus[0].total, driver.cuda) == (0, "")


def test_the_torch_of_this_python_is_read_without_importing_it():
    build = torch_build(Path(sysconfig.get_path("purelib")))
    assert build is not None
    assert build.version.partition("+")[0] == metadata.version("torch").partition("+")[0]
    assert torch_build(Path("/nowhere")) is None


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A program of that name in place of the driver's."""

    def make(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return make


def test_the_program_is_asked(smi):
    smi(f'case "$1" in --query-gpu=*) cat <<E\n{ROWS}E\n;; *) cat <<E\n{PAGE}E\n;; esac')
    driver = read_driver()
    assert driver is not None
    assert len(driver.gpus) == 2


def test_a_driver_that_does_not_match_its_module(smi):
    smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with refusal("gpu.failed-driver", "Failed to initialize NVML"):
        read_driver()


def test_no_program_is_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_driver() is None


def test_what_hides_gpus():
    assert hidden_by({}) is None
    assert hidden_by({"NVIDIA_VISIBLE_DEVICES": "all"}) is None
    assert hidden_by({"NVIDIA_VISIBLE_DEVICES": "void"}) == "NVIDIA_VISIBLE_DEVICES='void'"
