"""What nvidia-smi prints, read. The texts are in its form; they were not made by a GPU here."""

import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from equipoise.errors import EquipoiseError
from equipoise.installation.gpus import hidden_by, parse_driver, read_driver, torch_build

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
    with pytest.raises(EquipoiseError, match="nvidia-smi fails: Failed to initialize NVML"):
        read_driver()


def test_no_program_is_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_driver() is None


def test_what_hides_gpus():
    assert hidden_by({}) is None
    assert hidden_by({"NVIDIA_VISIBLE_DEVICES": "all"}) is None
    assert hidden_by({"NVIDIA_VISIBLE_DEVICES": "void"}) == "NVIDIA_VISIBLE_DEVICES='void'"
