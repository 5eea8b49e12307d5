"""The Ray of a rehearsal beside a start on the same machine: neither joins the other's."""

import os
import subprocess
import sys

import pytest

from equipoise.doctor.checks import Case
from equipoise.doctor.machine import cluster

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("only_ray")]

pytest.importorskip("ray", reason="the extra rehearse is needed")

#: Ray 2.60 lets in whoever has its token; the versions that NeMo-RL locks, everybody.
OPEN = {"RAY_AUTH_MODE": "disabled"}
REHEARSAL = """
import sys, ray
from equipoise.train.nemo_rl.rehearsal.cpu import start_ray
start_ray(2)
print("address", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def rehearsals():
    """The address of a Ray as a rehearsal starts it, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", REHEARSAL],
        env=os.environ | OPEN | {"RAY_ADDRESS": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = (line for line in process.stdout if line.startswith("address "))
    yield next(lines).split()[1]
    process.stdin.close()
    process.wait()


def test_a_start_does_not_count_its_gpus(rehearsals, monkeypatch):
    for name, value in {**OPEN, "RAY_ADDRESS": rehearsals}.items():
        monkeypatch.setenv(name, value)
    assert cluster(Case()) is None
