"""Every line and branch of containers/slurm in bash, among stubs of a cluster's programs."""

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.containers.stubs import SCRIPTS, Job

RECIPE = "recipes/grpo_fairness.py"


@dataclass(frozen=True, slots=True)
class Case:
    """A job with what is special about it, and how it has to end."""

    code: int = 0
    says: str = ""
    words: tuple[str, ...] = (RECIPE, "--config=large.yaml")
    nodes: int = 1
    files: dict[str, str] = field(default_factory=dict)  # that the stubs read
    variables: dict[str, str] = field(default_factory=dict)
    signals: str = ""
    limit: str = ""  # of open files
    queued_again: bool = False


RESTARTED = {"SLURM_RESTART_COUNT": "1"}
#: A run that waits until its signal; a job that is queued again.
WAITS = {"waits": ""}
Again = partial(Case, queued_again=True)
MINE = {"EQUIPOISE_RUN_NAME": "mine"}
AUDIT = ("-m", "equipoise", "evaluate", "fairness", "--model=policy=local")
MOUNTED = {"EQUIPOISE_CONTAINER": "image.sif", "EQUIPOISE_MOUNTS": "/data,/models:/weights:ro"}
ENROOT = {"EQUIPOISE_CONTAINER": "image.sqsh", "UV_CACHE_DIR": "/home/me/uv"}
CASES = {
    "one node": Case(),
    "two nodes": Case(nodes=2, says="all 2 nodes have joined"),
    "no word": Case(2, "which recipe?", words=()),
    "no Slurm": Case(2, "here is none: sbatch ", variables={"SLURM_JOB_ID": ""}),
    "own name": Case(2, "not with --run-name=x", words=(RECIPE, "--run-name=x")),
    "own folder": Case(2, "not with --output-dir", words=(RECIPE, "--output-dir", "x")),
    "own resume": Case(2, "not with --resume", words=(RECIPE, "--resume", "x")),
    "no image": Case(2, "no such file", variables={"EQUIPOISE_CONTAINER": "missing.sif"}),
    "no GPUs of Slurm's": Case(variables={"SLURM_GPUS_ON_NODE": ""}),
    "no DNS": Case(files={"dns": "", "interfaces": "fe80::1 169.254.3.1 10.1.2.3 172.17.0.1"}),
    "no address": Case(2, "no address that other nodes can reach", files={"dns": ""}),
    "few files": Case(says="n1 allows 900 open files", limit="-n 900"),
    "seed of an array": Case(variables={"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "43"}),
    "no Python": Case(1, "/none/p does not start: ", variables={"NEMO_RL_PYTHON": "/none/p"}),
    "failure": Case(3, files={"code": "3"}),
    "Ray's own mark": Case(files={"ray/ray_current_cluster": "0.0.0.0:{port}"}),
    "failure after the loss of a node": Again(nodes=2, files={"code": "1", "loses-n2": ""}),
    "loss of a node": Again(0, "Ray has ended on a node", nodes=2, files=WAITS | {"dies-n2": ""}),
    "head starts late": Case(nodes=2, says="try 3 of 3", files={"fail-n1": "2"}),
    "head never starts": Again(0, "did not start in three tries", files={"fail-n1": "3"}),
    "worker starts late": Case(nodes=2, files={"fail-n2": "19"}),
    "worker never starts": Again(nodes=2, files={"fail-n2": "20"}),
    "worker never joins": Again(0, "1 of 2 nodes have joined", nodes=2, files={"hang-n2": ""}),
    "time is up": Again(0, "the time is nearly up", files=WAITS, signals="USR1"),
    "time is up again": Case(1, "raise --time", files=WAITS, signals="USR1", variables=RESTARTED),
    "time is up again after more was kept": Again(
        files=WAITS | {"keeps": ""}, signals="USR1", variables=RESTARTED
    ),
    "preempted again": Again(files=WAITS, signals="TERM", variables=RESTARTED),
    "cancelled": Case(
        130, "EQUIPOISE_RUN_NAME=slurm-", files=WAITS | {"state": "CANCELLED"}, signals="TERM"
    ),
    "known run": Case(
        variables=MINE, files={"project/results/fairness/mine/provenance.json": "{}"}
    ),
    "known audit": Case(
        words=AUDIT, variables=MINE, files={"project/results/audits/mine/audit.json": "{}"}
    ),
    "Apptainer": Case(nodes=2, files={"project/image.sif": ""}, variables=MOUNTED),
    "enroot": Case(nodes=2, files={"project/image.sqsh": ""}, variables=ENROOT),
    "registry": Case(variables={"EQUIPOISE_CONTAINER": "nvcr.io/nvidia/nemo-rl:v0.7.0"}),
    "Docker Hub": Case(variables={"EQUIPOISE_CONTAINER": "docker://me/equipoise:1.0"}),
}


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that has ended."""

    code: int
    output: str
    job: Job


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run a case, once for all tests."""
    done: dict[str, Ran] = {}

    def run(name):
        if name not in done:
            case = CASES[name]
            job = Job(tmp_path_factory.mktemp("job"), case.nodes)
            for path, text in case.files.items():
                (job.folder / path).parent.mkdir(parents=True, exist_ok=True)
                job.put(path, text.replace("{port}", str(job.port)))
            code, output = job.run(
                *case.words, signals=case.signals, limit=case.limit, **case.variables
            )
            done[name] = Ran(code, output, job)
        return done[name]

    yield run


@pytest.mark.parametrize("name", CASES)
def test_a_job_ends_as_it_should(name, ran):
    case, done = CASES[name], ran(name)
    requeued = [call for call in done.job.calls("scontrol") if call.startswith("requeue ")]
    assert (done.code, bool(requeued)) == (case.code, case.queued_again), done.output
    assert case.says in done.output


def words(done):
    return done.job.get("words").splitlines()


def test_the_recipe_gets_its_words_and_the_job_s(ran):
    done = ran("one node")
    folder = done.job.submitted / "results"
    assert words(done) == [
        *(RECIPE, "--config=large.yaml", "--run-name", f"slurm-{done.job.number}"),
        *("--output-dir", str(folder), f"equipoise.cache_dir={folder}/shared/cache"),
    ]
    assert words(ran("seed of an array"))[-1] == "grpo.seed=43"
    assert "slurm-5-43" in words(ran("seed of an array"))


def test_a_run_that_has_begun_is_gone_on_with(ran):
    known, audit = ran("known run"), ran("known audit")
    folder = known.job.submitted / "results" / "fairness" / "mine"
    assert words(known) == [RECIPE, "--resume", str(folder)]
    folder = audit.job.submitted / "results" / "audits" / "mine"
    assert words(audit) == ["-m", "equipoise", "evaluate", "--resume", str(folder)]


def test_no_loopback_address_is_given_to_other_nodes(ran):
    """getent says 127.0.1.1 in all of them, as /etc/hosts of Debian and Ubuntu does."""
    (start,) = ran("one node").job.calls("ray")
    assert "--node-ip-address=0.0.0.0" in start  # from DNS
    (start,) = ran("no DNS").job.calls("ray")
    assert "--node-ip-address=10.1.2.3" in start


def test_ray_s_ports_keep_out_of_nemo_rl_s_way(ran):
    done = ran("two nodes")
    ray = shlex.split(done.job.calls("ray")[0])
    ports = dict(word.partition("=")[::2] for word in ray if "port" in word)
    head = int(ports["--port"])
    assert 1201 < head < 1300 and ports["--ray-client-server-port"] == "1201"
    assert (ports["--min-worker-port"], ports["--max-worker-port"]) == ("2000", "2999")
    assert all("--num-cpus=8" in start for start in done.job.calls("ray"))
    assert all("--num-gpus=4" in start for start in done.job.calls("ray"))
    assert "--num-gpus" not in ran("no GPUs of Slurm's").job.calls("ray")[0]


def test_ray_is_started_as_often_as_nemo_rl_starts_it(ran):
    starts = ran("head never starts").job.calls("ray")
    assert len([start for start in starts if "--head" in start]) == 3
    starts = ran("worker never starts").job.calls("ray")
    assert len([start for start in starts if "--address=" in start]) == 20
    starts = ran("loss of a node").job.calls("ray")  # a node that was lost does not come back
    assert len([start for start in starts if "--address=" in start]) == 1


def test_cpus_near_a_gpu_are_written_for_nemo_rl(ran):
    assert ran("one node").job.get("affinity") == "0:0-47\n"


def test_a_later_job_does_not_look_for_a_ray_that_has_ended(ran):
    assert not (ran("Ray's own mark").job.folder / "ray" / "ray_current_cluster").exists()


class TestContainers:
    FOLDERS = ("huggingface", "megatron", "packages")

    def test_apptainer_gets_the_image_and_its_folders(self, ran):
        job = ran("Apptainer").job
        worker, head = sorted(job.calls("apptainer"), key=lambda call: "node.sh head " in call)
        command = shlex.split(head)
        mounts = command[command.index("--bind") + 1].split(",")
        project, shared = job.submitted, job.submitted / "results" / "shared"
        assert {f"{path}:{path}" for path in (project, project / "results", shared)} <= set(mounts)
        assert {f"{shared / name}:{shared / name}" for name in self.FOLDERS} <= set(mounts)
        assert {"/data:/data", "/models:/weights:ro"} <= set(mounts)
        assert {"--fakeroot", "--writable-tmpfs", "--no-home", "--nv"} <= set(command)
        before, _, after = head.partition(" env ")
        assert before.endswith(str(project / "image.sif"))
        assert after.startswith(f"HOME={shared}/home bash containers/slurm/node.sh head ")
        assert worker.endswith("node.sh worker")

    @pytest.mark.parametrize(
        ("name", "image"),
        [
            ("enroot", "{project}/image.sqsh"),
            ("registry", "nvcr.io#nvidia/nemo-rl:v0.7.0"),
            ("Docker Hub", "me/equipoise:1.0"),
        ],
    )
    def test_pyxis_gets_the_image_by_a_name_that_enroot_knows(self, name, image, ran):
        job = ran(name).job
        for call in job.calls("srun"):
            assert f"--container-image={image.format(project=job.submitted)} " in call
            assert f"--container-workdir={job.submitted} " in call
            assert f"--container-mounts={job.submitted}:{job.submitted}," in call

    def test_every_folder_that_a_variable_names_is_mounted(self, tmp_path):
        """A link by its own name, as the variable has it."""
        job = Job(tmp_path / "job")
        (tmp_path / "link").symlink_to(tmp_path)
        variables = {
            "HF_HOME": f"{tmp_path}/link/models",
            "NRL_MEGATRON_CHECKPOINT_DIR": f"{tmp_path}/megatron",
            "EQUIPOISE_OVERLAY_DIR": f"{tmp_path}/packages",
            "HF_HUB_CACHE": "hub",  # from the folder of the job
            "WANDB_DIR": f"{tmp_path}/wandb",
        }
        code, output = job.run(RECIPE, EQUIPOISE_CONTAINER="me/nemo-rl:1", **variables)
        assert code == 0, output
        (call,) = job.calls("srun")
        for folder in variables.values():
            path = job.submitted / folder
            assert path.is_dir()
            assert f"{path}:{path}" in call


def test_every_line_and_branch_has_run(ran):
    traces = "".join(ran(name).job.get("trace") for name in CASES)
    assert not never_run(traces, SCRIPTS / "grpo.sbatch", SCRIPTS / "node.sh")


def never_run(traces, *scripts):
    """Return the lines and branches of scripts that are in no trace."""
    traced: dict[tuple[str, int], set[str]] = {}
    for found in re.finditer(r"^\++ (\S+):(\d+): (.*)$", traces, re.MULTILINE):
        traced.setdefault((found[1], int(found[2])), set()).add(found[3])
    never = []
    for script in scripts:
        for numbers, text in statements(script.read_text()):
            commands = set().union(
                *(traced.get((script.name, number), set()) for number in numbers)
            )
            missing = [
                word
                for word in branches(text)
                if not any(command.removeprefix("'").startswith(word) for command in commands)
            ]
            if missing or not commands:
                never.append(f"{script.name}:{numbers[0]}: {missing or text}")
    return never


#: What bash does not trace: ends and beginnings of blocks, and patterns of a case.
SYNTAX = re.compile(r"fi|do|else|esac.*|done.*|;;|\}.*|\w+\(\) \{|[^ ()]*( \| [^ ()]*)*\)|\S+\) ;;")


def statements(script):
    """Yield the lines of a script that do something: their numbers, and their text in one."""
    numbers: list[int] = []
    text = ""
    for number, line in enumerate(script.splitlines(), 1):
        stripped = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text and (not stripped or SYNTAX.fullmatch(stripped)):
            continue
        numbers.append(number)
        text += f" {stripped.removesuffix(chr(92))}"
        opened = re.sub(r"'[^']*'|\$\(\(|\)\)", "", text)
        pattern = re.match(r" ?\S+\) ", opened) is not None
        if stripped.endswith(("\\", "|")) or opened.count("(") > opened.count(")") - pattern:
            continue
        yield numbers, text.strip()
        numbers, text = [], ""


def branches(text):
    """Return what a line does on conditions: first words after || and &&, `then` and a pattern."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
    found = re.findall(r"(?:\|\||&&|; then|^\S+\)) +([\w\[]+[+]?=?)", bare)
    return [word for word in found if word != "true"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt-get install shellcheck")
def test_scripts_have_no_findings_of_shellcheck():
    scripts = [*SCRIPTS.iterdir(), SCRIPTS.parent / "nemo_rl.sh"]
    assert len(scripts) == 3
    subprocess.run(["shellcheck", *scripts], check=True)
