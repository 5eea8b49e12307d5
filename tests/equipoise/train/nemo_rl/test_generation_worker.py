"""Which class generates in a rehearsal, and under which Python."""

import sys

import pytest

from equipoise.train.nemo_rl.rehearsal.vllm import PYTHON_VARIABLE, generation_worker
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("asynchronous", "name"), [(False, "CpuGenerationWorker"), (True, "CpuAsyncGenerationWorker")]
)
def test_the_stand_in_generates_here_where_no_vllm_is_named(monkeypatch, asynchronous, name):
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    worker = generation_worker(asynchronous)
    assert (worker.name.rpartition(".")[2], worker.python) == (name, sys.executable)


@pytest.mark.parametrize(
    ("asynchronous", "name"), [(False, "CpuVllmWorker"), (True, "CpuAsyncVllmWorker")]
)
def test_vllm_generates_under_the_python_that_is_named(monkeypatch, tmp_path, asynchronous, name):
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    worker = generation_worker(asynchronous)
    assert (worker.name.rpartition(".")[2], worker.python) == (name, str(python))


def test_a_python_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "python"))
    with refusal("rehearsal.no-vllm-python"):
        generation_worker()
