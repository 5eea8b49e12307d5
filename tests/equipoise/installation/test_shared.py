"""Which nodes see a folder: asked of a real Ray, and of a real Slurm where it is installed."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.doctor.nemo_rl import in_slurm, seen_by_nodes
from equipoise.errors import EquipoiseError
from equipoise.installation.shared import slurm_nodes, unseen_by_ray, unseen_by_slurm
from tests.contract.slurm import cluster

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("only_ray")]


def test_a_node_that_does_not_see_a_folder_is_named():
    result = seen_by_nodes({"n1": [], "n2": [Path("/home/me")]}, [Path("/home/me")])
    assert (result.status, result.says) == ("failure", "n2 does not see /home/me")
    assert seen_by_nodes({"n1": [], "n2": []}, [Path("/shared")]).status == "ok"


def test_outside_a_job_nobody_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_nodes({"SLURM_JOB_NUM_NODES": "2"}) == 0
    assert in_slurm({}, [tmp_path], 4).status == "not checked"
    assert in_slurm({}, [tmp_path], 1).status == "ok"


def test_the_nodes_of_a_real_ray_cluster(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `rehearse` installs it")
    import ray

    for limit in ("raylet_start_wait_time_s", "agent_register_timeout_ms"):  # a busy machine
        monkeypatch.setenv(f"RAY_{limit}", "300000" if limit.endswith("_ms") else "300")
    own = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets need a short path
    context = ray.init("local", num_cpus=1, include_dashboard=False, _temp_dir=own)
    try:
        monkeypatch.setenv("RAY_ADDRESS", context.address_info["gcs_address"])
        unseen = unseen_by_ray(Path(sys.executable), [tmp_path])
    finally:
        ray.shutdown()
        shutil.rmtree(own)
    assert list(unseen.values()) == [[]]
    assert not list(tmp_path.iterdir()), "the marks are taken away"


def test_a_python_without_a_cluster_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("equipoise.installation.shared._SECONDS", 0.01)
    with pytest.raises(EquipoiseError, match="the nodes of the Ray cluster cannot be asked"):
        unseen_by_ray(Path(sys.executable), [tmp_path])


# --- Slurm --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job_environment(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Of two nodes on this machine, the second with a file system of its own at /media."""
    if missing := cluster.missing():
        pytest.skip(f"no {', '.join(missing)}: as root, {cluster.HOW_TO}")
    own_media = {"n2": "mount -t tmpfs tmpfs /media"}
    with cluster.slurm(tmp_path_factory.mktemp("slurm"), shells=own_media) as running:
        yield running.environment


INSIDE = """\
import os, sys
from pathlib import Path
from equipoise.doctor.nemo_rl import in_slurm
result = in_slurm(dict(os.environ), [Path(name) for name in sys.argv[1:]], 2)
print(result.status, result.says)
"""


def inside_a_job(environment: dict[str, str], folder: Path) -> str:
    command = ["salloc", "--nodes=2", "--quiet", sys.executable, "-c", INSIDE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_the_nodes_of_a_real_slurm_job(job_environment, tmp_path):
    assert inside_a_job(job_environment, tmp_path).startswith(f"ok 2 nodes see {tmp_path}")


def test_a_node_with_a_disk_of_its_own(job_environment):
    """/media is a file system of the second node's alone."""
    said = inside_a_job(job_environment, Path("/media"))
    assert said.startswith("failure n2 does not see /media"), said


def test_outside_a_job_srun_would_wait_for_nodes(job_environment):
    assert slurm_nodes(job_environment) == 0
    with pytest.raises(EquipoiseError, match="cannot be asked"):
        unseen_by_slurm("/bin/false", 2, [Path("/tmp")])
