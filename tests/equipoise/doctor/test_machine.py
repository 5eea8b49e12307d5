"""Python's packages, torch and the driver, GPUs and memory."""

import pytest

from equipoise.doctor import machine
from equipoise.doctor.machine import (
    Driver,
    Gpu,
    host_memory,
    local_gpus,
    local_memory,
    nemo_rl_memory,
    packages,
    parse_driver,
    read_driver,
)
from tests.equipoise.doctor.conftest import LARGE, MEDIUM, SMALL
from tests.refusals import refusal

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 81559 * 2**20, 1 * 2**20)
DRIVER = Driver("550.54.15", (H100,))


@pytest.mark.parametrize(("present", "status"), [(True, "ok"), (False, "failure")])
def test_four_bits_need_their_package(present, status, case, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda _: present or None)
    words = ("equipoise.load_in_4bit=true", "policy.dtensor_cfg.lora_cfg.enabled=true")
    (result,) = packages(case("fairness", *SMALL, "--engine=local", *words))
    assert (result.status, "bitsandbytes" in result.says) == (status, not present)


@pytest.fixture
def with_gpus(monkeypatch):
    """The driver of the machine has these, and torch sees as many unless it says otherwise."""

    def have(*gpus, seen=None):
        monkeypatch.setattr(machine, "read_driver", lambda: Driver("1", gpus))
        count = len(gpus) if seen is None else seen
        monkeypatch.setattr(machine, "count_gpus", lambda: count)
        monkeypatch.setattr(machine, "gpus_of_torch", lambda: count)

    return have


def worst(case):
    """The status of the first finding, and what all of them say."""
    findings = list(local_gpus(case))
    return findings[0].status, " ".join(finding.says for finding in findings)


def test_a_gpu_that_is_asked_for_and_missing(case, with_gpus):
    with_gpus()
    assert worst(case("fairness", "--device", "cuda"))[0] == "failure"
    assert worst(case("fairness"))[0] == "ok"


@pytest.mark.parametrize(
    ("environment", "status"), [({}, "failure"), ({"CUDA_VISIBLE_DEVICES": ""}, "ok")]
)
def test_a_gpu_that_torch_does_not_see(environment, status, case, with_gpus):
    """As with a torch without CUDA, or for a newer one than the driver's."""
    with_gpus(H100, seen=0)
    assert worst(case("fairness", environment=environment))[0] == status


def test_a_model_that_the_gpu_of_the_local_engine_cannot_hold(case, with_gpus):
    words = (*SMALL, "--model-name", "Qwen/Qwen2.5-14B-Instruct", "--engine", "local")
    with_gpus(H100)
    assert local_memory(case("fairness", *words)).status == "ok"
    with_gpus(Gpu(0, "NVIDIA A10", 24 * 10**9, 0))
    with refusal("gpu.small-memory", "24 GB"):
        local_memory(case("fairness", *words))


def test_the_memory_model_is_compared_with_the_gpus_that_are_there(case):
    """Medium is planned for 80 GB; on 16 GB it cannot run, whatever the configuration says."""
    config = case("fairness", *MEDIUM).config
    (fits,) = nemo_rl_memory(DRIVER, config)
    assert fits.status == "ok"
    small = Gpu(1, "NVIDIA T4", 16 * 10**9, 0)
    results = list(nemo_rl_memory(Driver("1", (H100, small)), config))
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
0, NVIDIA H100 80GB HBM3, 81559, 4, 550.54.15
1, NVIDIA H100 80GB HBM3, 81559, 70012, 550.54.15
"""


def test_a_gpu_whose_memory_is_the_machine_s_says_none():
    """As Grace Blackwell's on a desk."""
    driver = parse_driver("0, NVIDIA GB10, [N/A], [N/A], 580.95.05\n")
    assert driver.gpus[0].total == 0


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
    smi(f"cat <<E\n{ROWS}E")
    driver = read_driver()
    assert driver.version == "550.54.15"
    assert [gpu.index for gpu in driver.gpus] == [0, 1]
    assert driver.gpus[1].used == 70012 * 2**20


def test_a_driver_that_does_not_match_its_module_and_none(smi, monkeypatch, tmp_path):
    smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with refusal("gpu.failed-driver", "Failed to initialize NVML"):
        read_driver()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert read_driver() is None
