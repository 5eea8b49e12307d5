"""containers/slurm in a real Slurm: two nodes on this machine, jobs by `sbatch`.

But for the audits and the last test a program that trains nothing is in place of the recipe, and
but for the last one, a program that starts nothing in place of Ray: what they test is the script,
its signals, and Slurm.
"""

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.contract.rehearsal import SMALL, needs_checkout
from tests.contract.slurm import cluster
from tests.contract.slurm.cluster import slurm

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "containers/slurm/grpo.sbatch"
RECIPE = "tests/contract/slurm/recipe.py"
MISSING = cluster.missing()

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: as root, {cluster.HOW_TO}"
)
#: Overrides with which a recipe takes every stage in seconds. So short a training may leave an
#: adapter as it was, which an audit refuses.
TINY = (
    *("equipoise.data.num_samples=32", "equipoise.evaluation.bootstrap_draws=100"),
    "policy.dtensor_cfg.lora_cfg.enabled=false",
)
#: `ray status` of as many nodes as were started; `ray start`, which listens until it is killed.
NO_RAY = """\
#!/bin/bash
nodes={folder}/nodes-$SLURM_JOB_ID
case $1 in
    start)
        touch "$nodes-$SLURMD_NODENAME"
        env > {folder}/ray-$SLURMD_NODENAME.env
        case "$*" in *--head*) exec {python} -c "$LISTEN" "$EQUIPOISE_RAY_PORT" ;; esac
        exec sleep 600
        ;;
    status) ls "$nodes"-* | sed 's/.*/ 1 node_x/' ;;
esac
"""
LISTEN = """\
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
while True:
    server.accept()
"""
#: The first start on the first node fails.
FAILS_ONCE = """\
#!/bin/bash
if [ "$1$SLURMD_NODENAME" = startn1 ] && mkdir {folder}/failed-$SLURM_JOB_ID 2>/dev/null; then
    echo "no Ray yet"
    exit 1
fi
exec {ray} "$@"
"""
#: Runs what it is told to, and leaves the image and its folders aside; pyxis is a part of srun.
APPTAINER = """\
#!/bin/bash
while [ "$1" != env ]; do shift; done
exec "$@"
"""
PYXIS = """\
#!/bin/bash
words=()
for word in "$@"; do
    case $word in --*container*) ;; *) words+=("$word") ;; esac
done
exec /usr/bin/srun "${words[@]}"
"""
#: Two nodes on one machine: each its own ports and address, and a small store.
RAY = """\
#!/bin/bash
address= first=2100
[ "$SLURMD_NODENAME" = n1 ] || address=--node-ip-address=127.0.0.2 first=3100
words=()
[ "$1" = start ] && words=(--min-worker-port=$first --max-worker-port=$((first + 800)) \\
    --object-store-memory=200000000 $address)
exec {ray} "$@" "${{words[@]}}"
"""


@pytest.fixture(scope="module")
def cluster_of_two(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm"), grace=20) as running:
        yield running


@pytest.fixture
def programs(tmp_path):
    """A folder with this Python and something in place of Ray."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    program(folder / "ray", NO_RAY.format(folder=tmp_path, python=sys.executable))
    program(folder / "apptainer", APPTAINER)
    program(folder / "srun", PYXIS)
    return folder


def fail_once(programs, folder):
    """Let the first start of Ray's head fail."""
    ray = (programs / "ray").rename(programs / "ray-itself")
    program(programs / "ray", FAILS_ONCE.format(folder=folder, ray=ray))


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def submit(cluster_of_two, programs, tmp_path):
    return submitting(cluster_of_two, programs, tmp_path, "--gpus-per-node=1")


def submitting(slurm, programs, tmp_path, *always):
    """Return a function that submits a job of two nodes and returns its number."""

    def submit(*words, options=(), recipe=RECIPE, **variables):
        own = {
            "EQUIPOISE_OUTPUT": str(tmp_path / "out"),
            "EQUIPOISE_SHARED": str(tmp_path / "shared"),
            "NEMO_RL_PYTHON": str(programs / "python"),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LISTEN": LISTEN,
        }
        log = f"--output={tmp_path}/%j.out"
        return slurm.call(
            *("sbatch", "--parsable", f"--chdir={ROOT}", "--nodes=2", log),
            *(*always, *options, SCRIPT, recipe, *words),
            **own | variables,
        ).strip()

    return submit


def run_of(folder, job):
    return folder / "out" / "task" / f"slurm-{job}"


def starts(run):
    return [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]


def checkpoints(run):
    return len(list(run.glob("checkpoints/step_*")))


def log(folder, job):
    return (folder / f"{job}.out").read_text()


def until(ready, seconds=60):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_run_on_two_nodes_with_one_token_in_no_log_leaves_nothing(
    cluster_of_two, submit, tmp_path
):
    job = submit("--steps=2", "grpo.max_num_steps=3")
    cluster_of_two.wait_for(job, "COMPLETED", seconds=60)
    (start,) = starts(run_of(tmp_path, job))
    assert start["node"] == "n1"
    assert "grpo.max_num_steps=3" in start["words"]
    assert f"equipoise.cache_dir={tmp_path}/shared/cache" in start["words"]
    assert "all 2 nodes have joined" in log(tmp_path, job)
    tokens = set()
    for node in cluster.NODES:
        lines = (tmp_path / f"ray-{node}.env").read_text().splitlines()
        tokens.update(line for line in lines if line.startswith("RAY_AUTH_TOKEN="))
    (token,) = (line.partition("=")[2] for line in tokens)
    assert len(token) == 64
    logs = [*(tmp_path / "out" / "slurm").rglob("*.log"), tmp_path / f"{job}.out"]
    assert len(logs) == 3
    assert all(token not in path.read_text() for path in logs)
    assert token not in cluster_of_two.call("scontrol", "show", "job", "--details", job)
    until(lambda: not processes_of(job), seconds=10)


@pytest.mark.parametrize("image", ["nemo-rl.sif", "nemo-rl.sqsh", "nvcr.io/nvidia/nemo-rl:v0.7.0"])
def test_a_run_in_a_container_with_all_memory_whose_head_starts_at_the_second_try(
    image, cluster_of_two, submit, programs, tmp_path
):
    """The site gives 100 MB a CPU, so 1,600 in all, unless a job asks for more."""
    fail_once(programs, tmp_path)
    if "/" not in image:
        (tmp_path / image).touch()
        image = str(tmp_path / image)
    job = submit("--steps=1", EQUIPOISE_CONTAINER=image)
    cluster_of_two.wait_for(job, "COMPLETED", seconds=90)
    assert "mem=8000M" in cluster_of_two.job(job)["TRES"]
    said = log(tmp_path, job)
    assert "try 2 of 3" in said and "all 2 nodes have joined" in said


def test_the_code_of_a_failure_is_the_job_s(cluster_of_two, submit):
    job = submit("--steps=1", "--exit=2")
    cluster_of_two.wait_for(job, "FAILED", seconds=60)
    assert cluster_of_two.job(job)["ExitCode"] == "2:0"
    assert cluster_of_two.job(job)["Restarts"] == "0"


def test_goes_on_after_the_time_limit(cluster_of_two, submit, tmp_path):
    """Slurm's own signal, which comes up to a minute earlier than asked for."""
    job = submit("--steps=70", options=("--time=1", "--signal=B:USR1@20"))
    cluster_of_two.wait_for(job, "COMPLETED", seconds=240)
    run = run_of(tmp_path, job)
    first, *others = starts(run)
    assert "--run-name" in first["words"]
    assert others
    assert all(start["words"] == ["--resume", str(run)] for start in others)
    assert checkpoints(run) == 70
    assert "the time is nearly up" in log(tmp_path, job)


def test_goes_on_after_a_preemption(cluster_of_two, submit, tmp_path):
    """All steps get SIGTERM at once; a job that ended with 0 then would not be queued again."""
    job = submit("--steps=12")
    run = run_of(tmp_path, job)
    until(lambda: checkpoints(run) > 1)
    cluster_of_two.call("srun", "--partition=high", "--nodes=2", "--immediate=60", "sleep", "1")
    cluster_of_two.wait_for(job, "COMPLETED", seconds=120, restarts=1)
    assert len(starts(run)) == 2
    assert checkpoints(run) == 12


def test_goes_on_after_a_preemption_while_the_model_is_converted(cluster_of_two, submit, tmp_path):
    """Slurm kills it after the grace time, with nothing kept, and queues it again."""
    job = submit("--steps=1", "--converts=25")
    run = run_of(tmp_path, job)
    until(lambda: (run / "starts.jsonl").exists())
    cluster_of_two.call("srun", "--partition=high", "--nodes=2", "--immediate=60", "sleep", "1")
    cluster_of_two.wait_for(job, "COMPLETED", seconds=180, restarts=1)
    assert len(starts(run)) == 2


def test_goes_on_after_the_loss_of_a_node(programs, tmp_path):
    """Of nodes without GPUs: Slurm 22.05 miscounts those of a job that it queues again then."""
    with slurm(tmp_path / "slurm", with_gpus=False) as two:
        job = submitting(two, programs, tmp_path)("--steps=50")
        run = run_of(tmp_path, job)
        until(lambda: checkpoints(run) > 1)
        two.lose_node("n2")
        two.wait_for(job, "PENDING", seconds=120, restarts=1)
        two.start_node("n2")
        two.wait_for(job, "COMPLETED", seconds=180, restarts=1)
        assert len(starts(run)) == 2
        assert checkpoints(run) == 50


def test_a_failure_after_the_loss_of_a_node_is_tried_again(cluster_of_two, submit, tmp_path):
    """Ray sees that a node is lost before Slurm does, and training fails of it."""
    job = submit("--steps=3", "--exit=1")
    run = run_of(tmp_path, job)
    until(lambda: (run / "starts.jsonl").exists())
    (tmp_path / f"nodes-{job}-n2").unlink()
    cluster_of_two.wait_for(job, "FAILED", seconds=120, restarts=1)
    assert len(starts(run)) == 2


def test_a_node_whose_ray_does_not_start_ends_the_wait(cluster_of_two, submit, programs, tmp_path):
    """Twice: the second time nothing was kept since the first."""
    broken = 'case "$1$SLURMD_NODENAME" in startn2) echo "no Ray here"; exit 1 ;; esac\n'
    text = (programs / "ray").read_text().replace("#!/bin/bash\n", f"#!/bin/bash\n{broken}")
    program(programs / "ray", text)
    # Twenty tries, ten seconds apart.
    program(programs / "sleep", '#!/bin/bash\n[ "$1" != 10 ] || set 0.1\nexec /bin/sleep "$1"\n')
    job = submit("--steps=1")
    cluster_of_two.wait_for(job, "FAILED", seconds=180, restarts=1)
    assert "Ray has ended on a node; see" in log(tmp_path, job)
    assert "nothing was kept since the last start" in log(tmp_path, job)
    until(lambda: not processes_of(job), seconds=10)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_cancelled_job_stays_cancelled(nodes, cluster_of_two, submit, tmp_path):
    """On one node the script outlives training, and decides; on two Slurm may kill it before."""
    job = submit("--steps=100", options=(f"--nodes={nodes}",))
    until(lambda: checkpoints(run_of(tmp_path, job)) > 0)
    cluster_of_two.call("scancel", job)
    cluster_of_two.wait_for(job, "CANCELLED", seconds=60)
    assert nodes == 2 or "ended by Slurm" in log(tmp_path, job)
    time.sleep(2)
    assert cluster_of_two.job(job)["Restarts"] == "0"


def test_an_array_trains_a_run_for_each_seed(cluster_of_two, submit, tmp_path):
    array = submit("--steps=1", options=("--array=7-8%1",))
    for seed in (7, 8):
        cluster_of_two.wait_for(f"{array}_{seed}", "COMPLETED", seconds=90)
        (start,) = starts(run_of(tmp_path, f"{array}-{seed}"))
        assert f"grpo.seed={seed}" in start["words"]


def test_the_chain_of_the_docs_compares_before_with_after(
    cluster_of_two, programs, tmp_path, monkeypatch
):
    """The page's own lines, with sizes that fit here; the recipes are the real ones."""
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    (block,) = re.findall(r"```bash\n(grpo=.*?)```", page, re.DOTALL)
    script = (
        block.replace("nemo_configs/medium.yaml", f"nemo_configs/smoke.yaml {' '.join(TINY)}")
        .replace("policy=Qwen/Qwen2.5-7B-Instruct", "policy=local")
        .replace("--gpus-per-node=8", "--gpus-per-node=1")
        .replace("sbatch --", f"sbatch --output={tmp_path}/%j.out --")
    )
    for name in ("containers", "nemo_configs", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    equipoise = Path(sys.executable).with_name("equipoise")
    program(programs / "uv", f'#!/bin/bash\nshift 2\nexec {equipoise} "$@"\n')
    monkeypatch.chdir(tmp_path)
    told = cluster_of_two.call(
        *("bash", "-eu", "-c", script),
        NEMO_RL_PYTHON=str(programs / "python"),
        PATH=f"{programs}:{os.environ['PATH']}",
    )
    job = told.split()[-1]
    cluster_of_two.wait_for(job, "COMPLETED", seconds=400)
    assert "before" in log(tmp_path, job)
    comparison = json.loads((tmp_path / "results" / "comparison" / "compare.json").read_text())
    assert {entry["name"] for entry in comparison["entries"]} == {"before", "after"}


def test_an_audit_goes_on_after_the_time_limit(cluster_of_two, submit, tmp_path):
    words = ("fairness", "--model=policy=local", "--config=nemo_configs/smoke.yaml", *TINY)
    verb = ("equipoise", "evaluate")
    job = submit(*verb, *words, recipe="-m", options=("--nodes=1",))
    audit = tmp_path / "out" / "audits" / f"slurm-{job}"
    until((audit / "audit.json").exists, seconds=90)
    cluster_of_two.call("scancel", "--batch", "--signal=USR1", job)
    cluster_of_two.wait_for(job, "COMPLETED", seconds=200, restarts=1)
    assert "queued again" in log(tmp_path, job)
    assert (audit / "fairness" / "policy" / "report.html").is_file()


def processes_of(job):
    mark = f"SLURM_JOB_ID={job}".encode()
    left = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                left.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return left


@needs_checkout
def test_a_rehearsal_on_two_nodes_queued_again_has_the_history_of_one_that_was_not(
    cluster_of_two, submit, programs, tmp_path
):
    """NeMo-RL's own loop and workers, on a Ray that the job has made of its two nodes.

    The head's first start fails, and an image is named that a stub leaves aside.
    """
    program(programs / "ray", RAY.format(ray=Path(sys.executable).with_name("ray")))
    fail_once(programs, tmp_path)
    (tmp_path / "nemo-rl.sif").touch()
    variables = {
        "EQUIPOISE_CONTAINER": str(tmp_path / "nemo-rl.sif"),
        "OMP_NUM_THREADS": "1",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    words = ("--rehearse", "--config=nemo_configs/medium.yaml", *SMALL)
    nodes = ("cluster.num_nodes=2", "cluster.gpus_per_node=1")
    histories = []
    for interrupted in (False, True):
        job = submit(*(*words, *nodes), recipe="recipes/grpo_fairness.py", **variables)
        run = tmp_path / "out" / "fairness" / f"slurm-{job}"
        if interrupted:
            # In the first step: after the second one a rehearsal stops by itself.
            until((run / "baseline" / "evaluation.json").exists, seconds=900)
            cluster_of_two.call("scancel", "--batch", "--signal=USR1", job)
        cluster_of_two.wait_for(job, "COMPLETED", seconds=1800, restarts=int(interrupted))
        assert (run / "report.html").is_file()
        assert ("queued again" in log(tmp_path, job)) is interrupted
        histories.append(history(run))
    first, second = histories
    assert first == second


def history(run):
    """Read the columns of the history that are equal in every run; seconds are not."""
    rows = map(json.loads, (run / "training_history.jsonl").open())
    names = ("step", "reward", "loss", "grad_norm")
    return [{name: row[name] for name in names} for row in rows]
