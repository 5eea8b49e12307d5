"""Which class generates in a rehearsal, and under which Python."""

import sys

import pytest

from equipoise.errors import EquipoiseError
from equipoise.train.nemo_rl.rehearsal.vllm import PYTHON_VARIABLE, generation_worker


def test_the_stand_in_generates_here_where_no_vllm_is_named(monkeypatch):
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    assert generation_worker().name.endswith("CpuGenerationWorker")
    assert generation_worker().python == sys.executable


def test_vllm_generates_under_the_python_that_is_named(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    assert generation_worker().name.endswith("CpuVllmWorker")
    assert generation_worker().python == str(python)


def test_a_python_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "python"))
    with pytest.raises(EquipoiseError, match="which is no file"):
        generation_worker()


def test_the_stand_in_generates_asynchronously_in_any_case(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    assert generation_worker(asynchronous=True).name.endswith("CpuAsyncGenerationWorker")
    assert generation_worker(asynchronous=True).python == sys.executable
