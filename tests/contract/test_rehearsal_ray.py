"""NeMo-RL's own start on a machine where a rehearsal's Ray runs.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_rehearsal_ray.py
"""

import os
import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest

from tests.contract.rehearsal import needs_checkout, needs_extra

pytestmark = [pytest.mark.usefixtures("only_ray"), needs_checkout, needs_extra()]
#: NeMo-RL's own start, on a machine where no other Ray can be seen than this one.
NEMO_RL = """
import sys
from equipoise.train.nemo_rl.process import before_nemo_rl
from equipoise.files.nemo_rl import find_installation
find_installation().make_importable()
before_nemo_rl()
import ray
from functools import cache
from ray._private import services
services.find_gcs_addresses = cache(lambda: {sys.argv[1]})
from nemo_rl.distributed.virtual_cluster import init_ray
init_ray()
print("joined", ray.get_runtime_context().gcs_address, flush=True)
ray.shutdown()
"""
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


@pytest.fixture
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


def test_nemo_rl_starts_one_of_its_own_beside_it(rehearsals):
    with TemporaryDirectory(dir="/tmp") as folder:  # Ray's sockets are below it, in short names
        environment = os.environ | OPEN | {"RAY_ADDRESS": "", "RAY_TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", NEMO_RL, rehearsals],
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
    # How Ray ends that second one is not asked: on a loaded machine the process has crashed there.
    lines = [line for line in done.stdout.splitlines() if line.startswith("joined ")]
    assert lines, done.stderr
    assert lines[0].split()[1] != rehearsals
