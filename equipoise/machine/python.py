"""NeMo-RL's Pythons: what they have and see, and whether that is what NeMo-RL was locked with.

An installation there, by `uv run` of another project for instance, changes what NeMo-RL was tested
with, and CUDA's libraries with it.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from equipoise.config.nemo_rl.assumptions import OWN_CLUSTER
from equipoise.config.nemo_rl.installation import find_python, without_python_settings
from equipoise.errors import EquipoiseError
from equipoise.machine.overlay import BESIDE, NEEDED

_SCRIPT = Path(__file__).with_name("script.py")
_SECONDS = 180  # the first import of torch on a slow disk
#: Each node of the Slurm job prints its name and the files that it lacks.
_SHELL = (
    'printf %s "$SLURMD_NODENAME"; for f in "$@"; do [ -e "$f" ] || printf "\\t%s" "$f"; done; echo'
)
_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")
#: A build of a version, such as +cu129: the lock and an index may name it differently.
_BUILD = re.compile(r"\+.*")
#: What processes of one run share, or what is loaded with CUDA: another version of it breaks them.
_VITAL = re.compile(r"ray|torch|triton|transformers|vllm|numpy|nvidia-.*|transformer-engine.*")

#: Node -> the folders that it does not see.
Unseen = Mapping[str, Sequence[Path]]


# --- what a Python has --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that must agree within a Ray cluster."""

    python: str
    ray: str

    def __str__(self) -> str:
        """As in a sentence."""
        return f"Python {self.python} and Ray {self.ray}"


@dataclass(frozen=True, slots=True)
class PythonInfo:
    """A Python's answer."""

    python: str
    versions: Mapping[str, str | None]  # of the distributions that were asked for
    gpus: int  # of this machine
    cluster: Sequence[int] | None  # GPUs of every node of a running Ray; None without one
    problem: str | None = None  # why a Ray cluster could not be asked

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which of the distributions it does not have."""
        return [name for name in names if self.versions[name] is None]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine for NeMo-RL."""

    root: Path  # NeMo-RL's
    python: Path  # of its driver
    python_info: PythonInfo  # by that Python
    workers: frozenset[Versions]  # what the workers' environments have
    environment: Mapping[str, str]


def look_at_machine(root: Path, environment: Mapping[str, str]) -> Machine:
    """The Python of that NeMo-RL, and what it sees; takes seconds. Raises `EquipoiseError`."""
    python = find_python(root)
    python_info = look(python, (*NEEDED, *BESIDE, "ray"))
    workers = frozenset(worker_versions(root, environment))
    return Machine(root, python, python_info, workers, environment)


def look(python: Path, names: Sequence[str]) -> PythonInfo:
    """Ask a Python for itself, these distributions, its GPUs and Ray, within seconds.

    Raises `EquipoiseError` where it does not answer.
    """
    try:
        answer = json.loads(_last_line([python, _SCRIPT, "look", OWN_CLUSTER, *names]))
    except subprocess.TimeoutExpired as error:
        raise EquipoiseError(
            "nemo-rl.slow-python",
            f"NeMo-RL's Python {python} does not answer within {_SECONDS} seconds",
            "Look whether a Ray cluster is going down here, and whether RAY_ADDRESS names a live "
            "one: `ray status` tells.",
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise EquipoiseError(
            "nemo-rl.silent-python",
            f"NeMo-RL's Python {python} does not answer: {_reason(error)}",
            f"Try it with `{python} -c 'import ray, torch'`, or name another one in "
            "NEMO_RL_PYTHON.",
        ) from error
    cluster = answer.pop("cluster")
    return PythonInfo(**answer, cluster=cluster["gpus"], problem=cluster["problem"])


def _last_line(command: Sequence[str | Path]) -> str:
    return _run(command).splitlines()[-1]


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        command,
        env=without_python_settings(os.environ),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    return done.stdout


def _reason(error: Exception) -> str:
    """The last line that a command wrote, or what the error says."""
    text = str(getattr(error, "stderr", None) or error)
    return (text.strip().splitlines() or [type(error).__name__])[-1]


def worker_versions(root: Path, environment: Mapping[str, str]) -> set[Versions]:
    """Return what NeMo-RL's workers run on, in the environments that exist or that it will make."""
    versions = set()
    for settings in workers_folder(root, environment).glob("*/pyvenv.cfg"):
        lines = settings.read_text(encoding="utf-8").splitlines()
        python = dict(line.partition(" = ")[::2] for line in lines).get("version_info", "unknown")
        # A half-made environment has no Ray, and NeMo-RL takes it as it is.
        versions.add(Versions(python, installed_in(settings.parent).get("ray", "none")))
    pinned = root / ".python-version"
    if not versions and pinned.is_file():
        python = pinned.read_text(encoding="utf-8").strip()
        versions = {Versions(python, ray) for ray in locked_in(root).get("ray", ())}
    return versions


def workers_folder(root: Path, environment: Mapping[str, str]) -> Path:
    """Return where NeMo-RL has the environments of its workers, or will make them."""
    return Path(environment.get("NEMO_RL_VENV_DIR") or root / "venvs")


# --- what NeMo-RL was locked with ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A package whose version is none that the lock has."""

    name: str
    version: str
    locked: tuple[str, ...]

    @property
    def vital(self) -> bool:
        """Whether a run would hardly survive it."""
        return bool(_VITAL.fullmatch(self.name))

    def __str__(self) -> str:
        """As in a sentence."""
        return f"{self.name} {self.version} (locked: {' or '.join(self.locked)})"


def changes(installed: Mapping[str, str], locked: Mapping[str, set[str]]) -> Iterator[Change]:
    """Yield what has another version than the lock; what it does not name is not NeMo-RL's."""
    for name, version in sorted(installed.items()):
        versions = locked.get(name, set())
        if versions and _plain(version) not in set(map(_plain, versions)):
            yield Change(name, version, tuple(sorted(versions)))


def installed_in(environment: Path) -> dict[str, str]:
    """The distributions of an environment, by their normalised names."""
    folders = environment.glob("lib/python3*/site-packages/*.dist-info")
    parsed = (_DISTRIBUTION.fullmatch(folder.name) for folder in folders)
    return {_normalised(match["name"]): match["version"] for match in parsed if match}


def locked_in(root: Path) -> dict[str, set[str]]:
    """The versions that NeMo-RL's uv.lock names of each package; empty without a lock.

    A package has several where extras differ.
    """
    path = root / "uv.lock"
    if not path.is_file():
        return {}
    versions: dict[str, set[str]] = {}
    for package in tomllib.loads(path.read_text(encoding="utf-8"))["package"]:
        if version := package.get("version"):
            versions.setdefault(_normalised(package["name"]), set()).add(version)
    return versions


def _plain(version: str) -> str:
    return _BUILD.sub("", version)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- what the other nodes see -------------------------------------------------------------------


def unseen_by_ray(python: Path, folders: Sequence[Path]) -> Unseen:
    """Ask the Ray cluster that NeMo-RL's Python joins. Raises `EquipoiseError`."""
    with _marked(folders) as marks, _asking("the nodes of the Ray cluster"):
        answer = json.loads(_last_line([python, _SCRIPT, "unseen", *marks]))
        return {node: [marks[name] for name in names] for node, names in answer.items()}


def unseen_by_slurm(srun: str, nodes: int, folders: Sequence[Path]) -> Unseen:
    """Ask the Slurm job that this process is in. Raises `EquipoiseError`."""
    options = ("--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    with _marked(folders) as marks, _asking("the nodes of the Slurm job"):
        output = _run([srun, *options, "--input=none", "/bin/sh", "-c", _SHELL, "sh", *marks])
        rows = [line.split("\t") for line in output.splitlines()]
        return {node: [marks[name] for name in names] for node, *names in rows}


def slurm_nodes(environment: Mapping[str, str]) -> int:
    """How many nodes the Slurm job of this process has; 0 outside one, or without srun."""
    number = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES", "")
    return int(number) if number.isdigit() and shutil.which("srun") else 0


@contextmanager
def _marked(folders: Sequence[Path]) -> Iterator[dict[str, Path]]:
    """A new file in each folder, gone afterwards: file -> folder."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(NamedTemporaryFile(dir=folder, prefix=".seen-"))
            for folder in folders
        ]
        yield {file.name: folder for file, folder in zip(files, folders, strict=True)}


@contextmanager
def _asking(nodes: str) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise EquipoiseError(
            "cluster.silent-nodes",
            f"{nodes} cannot be asked: {_reason(error)}",
            "Look at the job: `ray status`, or `squeue`.",
        ) from error
