"""Checks in NeMo-RL's Python refuse a start, and each refusal names the remedy."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.commands.doctor import machine as nemo_rl
from equipoise.commands.doctor import refuse_unfit
from equipoise.files.errors import EquipoiseError
from equipoise.files.nemo_rl import Installation
from tests.equipoise.commands.doctor.conftest import LARGE, SMALL

VARIABLES = {"TORCH_CUDA_ARCH_LIST": "9.0", "HF_HOME": "/shared"}


@pytest.fixture
def large(case):
    """Four nodes of eight GPUs, on Megatron."""
    return case("fairness", *LARGE, purpose="start")


@pytest.fixture
def small(case):
    """One GPU."""
    return case("fairness", *SMALL, "--engine", "nemo_rl", purpose="start")


@pytest.fixture
def said(monkeypatch, tmp_path):
    """Everything that a start is refused for on a machine; empty where it is not."""

    def refused(case, gpus=8, environment=VARIABLES, version="0.7.0", warn=list):
        monkeypatch.setattr(nemo_rl, "find_installation", lambda: Installation(tmp_path))
        monkeypatch.setattr(nemo_rl, "find_python", lambda _: Path(sys.executable))
        monkeypatch.setattr(nemo_rl, "count_gpus", lambda: gpus)
        monkeypatch.setattr(Installation, "version", version)
        try:
            refuse_unfit(replace(case, environment=environment, _facts={}), warn)
        except EquipoiseError as error:
            return f"{error.message}\n  {error.remedy}".strip()
        return ""

    return refused


def test_one_machine_with_its_gpus(small, said):
    assert not said(small)
    assert "1 GPU, and this machine has 0" in said(small, gpus=0)


def test_a_version_that_was_not_tried_is_one_line_and_goes_on(small, said):
    warnings = []
    assert not said(small, version="99.0.0+abcdef0", warn=warnings.append)
    (told,) = warnings
    assert "not tried with NeMo-RL 99.0.0" in told


def test_the_gpus_of_a_ray_cluster_are_left_to_nemo_rl(small, large, said):
    """As on a head node without GPUs."""
    assert not said(large, gpus=0)
    assert not said(small, gpus=0, environment={**VARIABLES, "RAY_ADDRESS": "10.0.0.1:1202"})


def test_workers_environments_must_be_in_reach_and_writable(small, tmp_path, said):
    """As uv links them, with its cache below the home of a root that the user is not."""
    vllm = tmp_path / "worker" / "lib" / "python3.13" / "site-packages" / "vllm"
    vllm.mkdir(parents=True)
    cached = tmp_path / "cached.py"
    (vllm / "__init__.py").symlink_to(cached)
    variables = {"NEMO_RL_VENV_DIR": str(tmp_path)}
    message = said(small, environment=variables)
    assert f"{vllm / '__init__.py'} cannot be written to" in message
    assert "--fakeroot --writable-tmpfs" in message
    cached.touch()
    assert not said(small, environment=variables)


def test_megatron_needs_its_variables_and_everything_is_said_at_once(large, small, said):
    message = said(large, environment={})
    assert "TORCH_CUDA_ARCH_LIST" in message and "NRL_MEGATRON_CHECKPOINT_DIR" in message
    assert not said(small, environment={})
    lines = message.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("  ") for line in lines[1::2])
