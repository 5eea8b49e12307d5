"""The doctor beside a real checkout of NeMo-RL, in whose Python it goes on.

This Python, which has a Ray, stands for its driver's; nobody is asked over a network.
"""

import os
import sys

import pytest

from tests.recipes.test_doctor import ROOT, doctor, results

pytestmark = pytest.mark.skipif(
    "NEMO_RL_PATH" not in os.environ, reason="set NEMO_RL_PATH to a checkout of NVIDIA-NeMo/RL"
)
pytest.importorskip("ray", reason="the extra `rehearse` installs it")


def test_nemo_rl_is_found_and_gpus_are_counted(tmp_path):
    own = {"NEMO_RL_PATH": os.environ["NEMO_RL_PATH"], "NEMO_RL_PYTHON": sys.executable}
    own["RAY_ADDRESS"] = ""
    small = ("--config", str(ROOT / "nemo_configs/small.yaml"), "--engine", "nemo_rl")
    done = doctor(tmp_path, "fairness", *small, "--json", "--offline", **own)
    told = results(done)
    statuses = {name: rows[0]["status"] for name, rows in told.items()}
    assert statuses["NeMo-RL"] == "ok", told["NeMo-RL"]
    assert done.returncode == int("failure" in statuses.values()), done.stderr
    assert os.environ["NEMO_RL_PATH"] in told["NeMo-RL"][0]["says"]
