"""NeMo-RL's own start on a machine where a rehearsal's Ray runs.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_rehearsal_ray.py
"""

import os
import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest

from tests.contract.rehearsal import needs_checkout, needs_extra
from tests.equipoise.train.nemo_rl.test_ray_cluster import OPEN, rehearsals  # noqa: F401  a fixture

pytestmark = [pytest.mark.usefixtures("only_ray"), needs_checkout, needs_extra()]
#: NeMo-RL's own start, on a machine where no other Ray can be seen than this one.
NEMO_RL = """
import sys
from equipoise.train.nemo_rl.process import before_nemo_rl
from equipoise.config.nemo_rl.installation import find_installation
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


def test_nemo_rl_starts_one_of_its_own_beside_it(rehearsals):  # noqa: F811
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
