"""A Slurm of two nodes on this machine, for as long as a test needs it.

Debian's slurmd takes the name of its node, so several run side by side. No cgroup and no GPU is
needed: terminals stand in for GPUs, as devices that Slurm hands out and nobody opens. Jobs share
this machine's cores, whatever the nodes say of theirs.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "unshare")
HOW_TO = "apt-get install --no-install-recommends slurm-wlm munge"
#: Without NODE_FAIL, after which a job is queued again.
_ENDED = {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT"}
_CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
MpiDefault=none
KillWait=5
MinJobAge=3600
{gres_types}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8 RealMemory=4000 {gres}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8 RealMemory=4000 {gres}
PartitionName=batch Nodes=n[1-2] Default=YES PriorityTier=1 GraceTime={grace} State=UP
PartitionName=high Nodes=n[1-2] PriorityTier=10 State=UP
"""
_DEVICES = "NodeName=n1 Name=gpu File=/dev/tty10\nNodeName=n2 Name=gpu File=/dev/tty20\n"


def missing():
    """Programs that are not installed here, or a user who may not start them."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return absent or ([] if os.geteuid() == 0 else ["the rights of root"])


@dataclass(frozen=True, slots=True)
class Slurm:
    """A running one; its commands read `SLURM_CONF`."""

    folder: Path
    shells: Mapping[str, str]
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environment(self):
        """Variables of a shell on a login node."""
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *words, **variables):
        """A command's output. Raises where it fails."""
        done = subprocess.run(
            words, env=self.environment | variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def job(self, number):
        """Read Slurm's record of a job: JobState, Restarts, ExitCode ..."""
        shown = self.call("scontrol", "show", "job", "--oneliner", number)
        return dict(word.partition("=")[::2] for word in shown.split() if "=" in word)

    def wait_for(self, number, *states, seconds, restarts=0):
        """Until the job is in one of these states, after as many restarts."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            job = self.job(number)
            if job["JobState"] in states and int(job["Restarts"]) >= restarts:
                return
            assert job["JobState"] not in _ENDED - set(states), job
            time.sleep(0.5)
        raise AssertionError(f"after {seconds} s job {number} is {self.job(number)}")

    def start_node(self, name):
        """Start the node of this name, with mounts of its own after its line of shell."""
        line = f"{self.shells.get(name, ':')} && exec slurmd -D -N {name}"
        self.start(name, "unshare", "--mount", "/bin/sh", "-c", line)

    def start(self, name, *command):
        """Start a daemon; its own words go to a log."""
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )

    def lose_node(self, name):
        """As a power cut: the node's daemon and all processes of its jobs end at once."""
        self.daemons[name].kill()
        self.daemons[name].wait()
        variables = (f"SLURMD_NODENAME={name}", f"SLURM_CONF={self.folder / 'slurm.conf'}")
        marks = {variable.encode() for variable in variables}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marks <= set((path / "environ").read_bytes().split(b"\0")):
                    os.kill(int(path.name), signal.SIGKILL)


@contextlib.contextmanager
def slurm(folder, grace=60, with_gpus=True, shells=None):
    """A Slurm in `folder`; its daemons end with the block.

    A preempted job has `grace` seconds; a node has one GPU, or none. `shells` are what nodes run
    before they start: what one mounts there is seen on it alone.
    """
    for name in ("run", "log", "state", "spool/n1", "spool/n2"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    key = folder / "run" / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    controller, first, second = (_free_port() for _ in range(3))
    names = {"folder": folder, "host": host, "grace": grace}
    ports = {"controller": controller, "first": first, "second": second}
    devices = {"gres_types": "", "gres": ""}
    if with_gpus:
        devices = {"gres_types": "GresTypes=gpu", "gres": "Gres=gpu:1"}
        (folder / "gres.conf").write_text(_DEVICES)
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(**names, **ports, **devices))
    cluster = Slurm(folder, shells or {})
    try:
        _start(cluster)
        yield cluster
    finally:
        subprocess.run(
            ["scancel", "--user=root"], env=cluster.environment, capture_output=True, check=False
        )
        _stop(cluster)


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _start(cluster):
    run, log = cluster.folder / "run", cluster.folder / "log"
    files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
    options = [f"--{option}={run / name}" for option, name in files.items()]
    logs = [f"--log-file={log / 'munged.log'}", f"--seed-file={run / 'munge.seed'}"]
    cluster.start("munged", "munged", "--foreground", "--force", *options, *logs)
    _until((run / "munge.socket").exists)
    cluster.start("slurmctld", "slurmctld", "-D", "-c")
    for node in NODES:
        cluster.start_node(node)
    _until(lambda: _idle(cluster) == len(NODES))


def _idle(cluster):
    words = ["sinfo", "--noheader", "--Node", "--partition=batch", "--format=%t"]
    done = subprocess.run(
        words, env=cluster.environment, capture_output=True, text=True, check=False
    )
    return done.stdout.split().count("idle")


def _until(ready, seconds=60):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "Slurm did not start"
        time.sleep(0.2)


def _stop(cluster):
    time.sleep(2)  # jobs that were cancelled
    for daemon in reversed(cluster.daemons.values()):
        if daemon.poll() is None:
            daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
