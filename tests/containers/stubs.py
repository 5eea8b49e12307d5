"""Programs of a cluster, in place of Slurm's, Apptainer's and Ray's own, for the scripts of a job.

Each is a script of a few lines. What they share is a folder, `$STUBS`: `calls` has what was called,
and a test puts files there that change what a program does.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "containers" / "slurm"
PROGRAMS = {
    # srun ends all that it has started when it gets SIGTERM.
    "srun": """
        echo "srun $*" >>"$STUBS/calls"
        output=/dev/stdout node=n2
        while :; do
            case $1 in
                --nodelist=*) node=n1 ;;
                --output=*) output=$(echo "${1#*=}" | sed s/%N/n2/) ;;
                --*) ;;
                *) break ;;
            esac
            shift
        done
        export SLURMD_NODENAME=$node
        setsid "$@" >>"$output" 2>&1 &
        pid=$!
        echo $pid >"$STUBS/pid-$node"
        trap 'kill -KILL -$pid; exit 143' TERM
        wait $pid
        """,
    "scontrol": """
        case "$1 $2" in
            "show hostnames") printf '%s\\n' n1 n2 ;;
            "show node") echo "NodeName=n1 CPUTot=8 NodeAddr=n1 NodeHostName=n1" ;;
            "show job")
                state=$(/bin/cat "$STUBS/state" || echo RUNNING)
                echo "JobId=7 JobState=$state Reason=None"
                ;;
            *) echo "scontrol $*" >>"$STUBS/calls" ;;
        esac
        """,
    "scancel": 'kill -TERM $(/bin/cat "$STUBS/pid-n1")',
    "apptainer": """
        echo "apptainer $*" >>"$STUBS/calls"
        while [ "$1" != env ]; do shift; done
        exec "$@"
        """,
    # A start fails as often as fail-NODE says, then has joined unless hang-NODE is there.
    "ray": """
        if [ "$1" = status ]; then
            for file in "$STUBS"/node-*; do [ ! -e "$file" ] || echo " 1 node_$file"; done
            exit
        fi
        echo "ray $*" >>"$STUBS/calls"
        failures=$(/bin/cat "$STUBS/fail-$SLURMD_NODENAME" || echo 0)
        if [ "$failures" -gt 0 ]; then
            echo $((failures - 1)) >"$STUBS/fail-$SLURMD_NODENAME"
            echo "no Ray here"
            exit 1
        fi
        [ -e "$STUBS/hang-$SLURMD_NODENAME" ] || touch "$STUBS/node-$SLURMD_NODENAME"
        exec {python} -I -S "$STUBS/ray.py" "$EQUIPOISE_RAY_PORT" "$EQUIPOISE_RAY_JOINED"
        """,
    "python": """
        [ "$1" != -c ] || exit 0
        exec {python} -I -S "$STUBS/recipe.py" "$@"
        """,
    "host": '/bin/cat "$STUBS/dns"',
    "getent": "echo '127.0.1.1 STREAM n1'",
    "hostname": 'case $1 in --all*) /bin/cat "$STUBS/interfaces" ;; *) echo n1 ;; esac',
    "sleep": "exec /bin/sleep 0.01",
    "nvidia-smi": "printf '0, 00000000:1B:00.0\\n1, 00000000:BD:00.0\\n'",
    "cat": "case $1 in */0000:1b:00.0/local_cpulist) echo 0-47 ;; *) exit 1 ;; esac",
}
#: Listens as Ray's head does; on n2 it ends when the test wants it to.
RAY = """
import os, pathlib, socket, sys, time
port, joined = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if os.environ["SLURMD_NODENAME"] == "n1":
    server = socket.create_server(("0.0.0.0", port))
    server.settimeout(60)
    while True:
        server.accept()
while not (joined.exists() and pathlib.Path(os.environ["STUBS"], "dies-n2").exists()):
    time.sleep(0.02)
"""
#: Begins a run, and ends with the code of the file `code`; `waits` makes it wait for SIGINT.
RECIPE = """
import os, pathlib, signal, sys, time
stubs, words = pathlib.Path(os.environ["STUBS"]), sys.argv[1:]
stopped = []
signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
if (stubs / "keeps").exists():
    folder = pathlib.Path(words[words.index("--output-dir") + 1], "fairness")
    run = folder / words[words.index("--run-name") + 1]
    run.mkdir(parents=True)
    for name in ("provenance.json", "reference.jsonl"):
        (run / name).touch()
(stubs / "words").write_text("\\n".join(words))
while (stubs / "waits").exists() and not stopped:
    time.sleep(0.02)
if (stubs / "loses-n2").exists():
    (stubs / "node-n2").unlink()
sys.exit(130 if stopped else int((stubs / "code").read_text()))
"""
#: Read by every bash: its lines, as it runs them, are appended to a file.
TRACE = """\
exec {trace}>>"$STUBS/trace"
BASH_XTRACEFD=$trace PS4='+ ${BASH_SOURCE[0]##*/}:$LINENO: '
set -x
"""


@dataclass(slots=True)
class Job:
    """A job in a folder of its own; its `number` decides the `port` of its Ray."""

    folder: Path
    nodes: int = 1
    number: int = field(init=False)

    def __post_init__(self):
        numbers = (random.randrange(1_000, 1_000_000) for _ in range(900))
        self.number = next(number for number in numbers if _is_free(_port(number)))
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            lines = text.replace("{python}", sys.executable)
            (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
            (programs / name).chmod(0o755)
        addresses = {"dns": "n1 has address 0.0.0.0\n", "interfaces": "127.0.1.1 fe80::1\n"}
        scripts = {"ray.py": RAY, "recipe.py": RECIPE, "trace.sh": TRACE}
        for name, text in {**addresses, **scripts, "code": "0", "calls": ""}.items():
            self.put(name, text)
        (self.folder / "trace").touch()
        self.submitted.mkdir()
        (self.submitted / "containers").symlink_to(ROOT / "containers")

    @property
    def port(self):
        """The port at which Ray's head listens."""
        return _port(self.number)

    @property
    def submitted(self):
        """The folder that the job is submitted in."""
        return self.folder / "project"

    def put(self, name, text=""):
        """Write a file that the programs read."""
        (self.folder / name).write_text(text)

    def get(self, name):
        """Read a file that the programs have written."""
        return (self.folder / name).read_text()

    def calls(self, program):
        """Return the words of each call of a program."""
        lines = self.get("calls").splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{program} ")]

    def variables(self, **more):
        """Return the environment of the job on its first node."""
        return {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "STUBS": str(self.folder),
            "RAY_TMPDIR": str(self.folder),
            "BASH_ENV": str(self.folder / "trace.sh"),
            "NRL_GPU_CPU_AFFINITY_FILE": str(self.folder / "affinity"),
            "SLURM_JOB_ID": str(self.number),
            "SLURM_JOB_NUM_NODES": str(self.nodes),
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_SUBMIT_DIR": str(self.submitted),
            "SLURM_CPUS_ON_NODE": "8",
            "SLURM_GPUS_ON_NODE": "4",
        } | more

    def start(self, *words, limit="", **more):
        """Start grpo.sbatch in bash, with `limit` as its words of ulimit."""
        before = f"ulimit {limit} && " if limit else ""
        return subprocess.Popen(
            ["bash", "-c", f'{before}exec bash containers/slurm/grpo.sbatch "$@"', "job", *words],
            cwd=self.submitted,
            env=self.variables(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words, signals="", **more):
        """Run the job to its end; `signals` of {USR1, TERM} are sent once the recipe has begun.

        Returns its exit code and what it said.
        """
        process = self.start(*words, **more)
        try:
            if signals:
                self.until("words")
                if signals == "TERM":  # which Slurm sends to all processes
                    os.kill(int(self.get("pid-n1")), signal.SIGTERM)
                process.send_signal(signal.Signals[f"SIG{signals}"])
            output, _ = process.communicate(timeout=60)
        finally:
            self.end()
        return process.returncode, output

    def until(self, name):
        """Wait for a file of the programs'."""
        deadline = time.monotonic() + 30
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.02)

    def end(self):
        """End all processes of the job, as Slurm does."""
        mark = f"STUBS={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)


def _port(number):
    return 1202 + number % 90


def _is_free(port):
    """Return whether nothing listens there, such as the same test in another folder."""
    with socket.socket() as server:
        try:
            server.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
