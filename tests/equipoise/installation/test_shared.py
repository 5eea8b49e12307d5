"""Which nodes see a folder: asked of a real Ray, and of a real Slurm where it is installed."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.doctor.nemo_rl import in_slurm, seen_by_nodes
from equipoise.errors import EquipoiseError
from equipoise.installation.shared import slurm_nodes, unseen_by_ray, unseen_by_slurm

PROGRAMS = ("slurmctld", "slurmd", "srun", "salloc", "munged", "unshare")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]


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

    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")  # a busy machine
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
def slurm(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Two nodes on this machine; the second one lives with a file system of its own at /media."""
    if MISSING or os.geteuid() != 0:
        pytest.skip(f"needs root and Slurm (slurm-wlm, munge); missing: {', '.join(MISSING)}")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("run", "log", "state", "spool/n1", "spool/n2"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o755)
    key = folder / "run" / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    ports = [free_port() for _ in range(3)]
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONF.format(d=folder, host=host, ports=ports))
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    run = folder / "run"
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
    files |= {"log-file": "munged.log", "seed-file": "munge.seed"}
    munge = ["munged", "--force", "--foreground"]
    munge += [f"--{option}={run / name}" for option, name in files.items()]
    own_media = "mount -t tmpfs tmpfs /media && exec slurmd -D -N n2"
    commands = [
        munge,
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", "n1"],
        ["unshare", "--mount", "/bin/sh", "-c", own_media],
    ]
    running = []
    for command in commands:
        running.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        time.sleep(1)
    yield environment
    for process in reversed(running):
        process.terminate()
    for process in running:
        process.wait(20)


CONF = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/run/munge.socket
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd-%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=batch Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""
INSIDE = """\
import os, sys
from pathlib import Path
from equipoise.doctor.nemo_rl import in_slurm
result = in_slurm(dict(os.environ), [Path(name) for name in sys.argv[1:]], 2)
print(result.status, result.says)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def inside_a_job(slurm: dict[str, str], folder: Path) -> str:
    command = ["salloc", "--nodes=2", "--quiet", sys.executable, "-c", INSIDE, str(folder)]
    done = subprocess.run(command, env=slurm, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_the_nodes_of_a_real_slurm_job(slurm, tmp_path):
    assert inside_a_job(slurm, tmp_path).startswith(f"ok 2 nodes see {tmp_path}")


def test_a_node_with_a_disk_of_its_own(slurm):
    """/media is a file system of the second node's alone."""
    said = inside_a_job(slurm, Path("/media"))
    assert said.startswith("failure n2 does not see /media"), said


def test_outside_a_job_srun_would_wait_for_nodes(slurm):
    assert slurm_nodes(slurm) == 0
    with pytest.raises(EquipoiseError, match="cannot be asked"):
        unseen_by_slurm("/bin/false", 2, [Path("/tmp")])
