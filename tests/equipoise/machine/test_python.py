"""What NeMo-RL's Python says of itself; which nodes see a folder, of a real Ray and Slurm."""

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.assumptions import OWN_CLUSTER
from equipoise.machine import python, script
from equipoise.machine.python import (
    Versions,
    look,
    slurm_nodes,
    unseen_by_ray,
    unseen_by_slurm,
    worker_versions,
)
from tests.contract.slurm import cluster
from tests.refusals import refusal


@pytest.mark.usefixtures("only_ray")
class TestAPython:
    @pytest.mark.deep
    def test_a_python_tells_its_versions(self, monkeypatch):
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        seen = look(Path(sys.executable), ("rich", "no-such-package"))
        assert seen.python == platform.python_version()
        assert seen.versions == {"rich": metadata.version("rich"), "no-such-package": None}
        assert seen.missing(("rich", "no-such-package")) == ["no-such-package"]

    @pytest.mark.deep
    def test_a_cluster_that_is_gone_is_said_at_once(self, monkeypatch):
        pytest.importorskip("ray", reason="the extra rehearse is needed")
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        seen = look(Path(sys.executable), ())
        assert seen.problem.startswith("nobody answers at 127.0.0.1:9")
        assert "RAY_ADDRESS is wrong" in seen.problem

    def test_the_address_that_a_killed_cluster_leaves_is_named(self, monkeypatch, tmp_path):
        services = pytest.importorskip("ray._private.services", reason="needs the extra rehearse")
        # Ray prefers a cluster that it finds among the machine's processes, whosever it is.
        monkeypatch.setattr(services, "find_gcs_addresses", set)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
        remedy = f"nobody answers at 127.0.0.1:9 .* remove {tmp_path}/ray/ray_current_cluster"
        with pytest.raises(RuntimeError, match=remedy):
            script.cluster_gpus(OWN_CLUSTER)

    def test_one_that_does_not_answer_is_named(self, tmp_path):
        with refusal("nemo-rl.silent-python"):
            look(tmp_path / "python", ())
        with refusal("nemo-rl.silent-python"):
            look(Path("/bin/false"), ())

    def test_a_slow_one_is_not_waited_for_for_ever(self, tmp_path, monkeypatch):
        monkeypatch.setattr(python, "_SECONDS", 0.1)
        slow = tmp_path / "python"
        slow.write_text("#!/bin/sh\nexec sleep 5\n")
        slow.chmod(0o755)
        with refusal("nemo-rl.slow-python", "0.1"):
            look(slow, ())


class TestWorkers:
    @pytest.fixture
    def root(self, tmp_path):
        (tmp_path / ".python-version").write_text("3.13.13\n")
        (tmp_path / "uv.lock").write_text(
            '[[package]]\nname = "numpy"\nversion = "2"\n'
            '[[package]]\nname = "ray"\nversion = "2.55.1"\n'
        )
        return tmp_path

    def test_those_to_be_made_are_of_the_lock(self, root):
        assert worker_versions(root, {}) == {Versions("3.13.13", "2.55.1")}
        assert worker_versions(root / "elsewhere", {}) == set()

    def test_those_that_are_there_count(self, root, tmp_path):
        environment = tmp_path / "ray_venvs" / "nemo_rl.Worker"
        (environment / "lib/python3.12/site-packages/ray-2.54.0.dist-info").mkdir(parents=True)
        (environment / "pyvenv.cfg").write_text("home = /x\nversion_info = 3.12.9\n")
        variables = {"NEMO_RL_VENV_DIR": str(tmp_path / "ray_venvs")}
        assert worker_versions(root, variables) == {Versions("3.12.9", "2.54.0")}

    def test_a_half_made_one_is_of_no_ray(self, root):
        """NeMo-RL would take it: it has a Python."""
        (root / "venvs" / "nemo_rl.Worker").mkdir(parents=True)
        (root / "venvs" / "nemo_rl.Worker" / "pyvenv.cfg").write_text("version_info = 3.13.13\n")
        assert worker_versions(root, {}) == {Versions("3.13.13", "none")}


@pytest.mark.deep
@pytest.mark.usefixtures("only_ray")
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


@pytest.mark.deep
@pytest.mark.usefixtures("only_ray")
def test_a_python_without_a_cluster_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("equipoise.machine.python._SECONDS", 0.01)
    with refusal("cluster.silent-nodes", "the nodes of the Ray cluster"):
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
from equipoise.machine.nemo_rl import in_slurm
result = in_slurm(dict(os.environ), [Path(name) for name in sys.argv[1:]], 2)
print(result.status, result.says)
"""


def inside_a_job(environment: dict[str, str], folder: Path) -> str:
    command = ["salloc", "--nodes=2", "--quiet", sys.executable, "-c", INSIDE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.deep
def test_the_nodes_of_a_real_slurm_job(job_environment, tmp_path):
    assert inside_a_job(job_environment, tmp_path).startswith(f"ok 2 nodes see {tmp_path}")


@pytest.mark.deep
def test_a_node_with_a_disk_of_its_own(job_environment):
    """/media is a file system of the second node's alone."""
    said = inside_a_job(job_environment, Path("/media"))
    assert said.startswith("failure n2 does not see /media"), said


@pytest.mark.deep
def test_outside_a_job_srun_would_wait_for_nodes(job_environment):
    assert slurm_nodes(job_environment) == 0
    with refusal("cluster.silent-nodes"):
        unseen_by_slurm("/bin/false", 2, [Path("/tmp")])
