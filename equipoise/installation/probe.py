"""Questions to NeMo-RL's Python about this machine, and the versions of its workers."""

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import EquipoiseError

_SCRIPT = Path(__file__).with_name("probe_script.py")
_SECONDS = 180  # the first import of torch on a slow disk


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


def look(python: Path, names: Sequence[str]) -> PythonInfo:
    """Ask a Python for itself, these distributions, its GPUs and Ray, within seconds.

    Raises `EquipoiseError` where it does not answer.
    """
    try:
        done = subprocess.run(
            [str(python), str(_SCRIPT), *names],
            env=without_python_settings(os.environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise _no_answer(python, error) from error
    cluster = answer.pop("cluster")
    return PythonInfo(**answer, cluster=cluster["gpus"], problem=cluster["problem"])


def without_python_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the variables that name another Python's packages.

    Below `uv run` Ray would send this folder to every node and start its workers by uv there.
    """
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {name: value for name, value in environment.items() if name not in ours}
    return variables | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def _no_answer(python: Path, error: Exception) -> EquipoiseError:
    if isinstance(error, subprocess.TimeoutExpired):
        return EquipoiseError(
            f"NeMo-RL's Python {python} does not answer within {_SECONDS} seconds",
            "Look whether a Ray cluster is going down here, and whether RAY_ADDRESS names a live "
            "one: `ray status` tells.",
        )
    output = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    last = (str(output).strip().splitlines() or [type(error).__name__])[-1]
    return EquipoiseError(
        f"NeMo-RL's Python {python} does not answer: {last}",
        f"Try it with `{python} -c 'import ray, torch'`, or name another one in NEMO_RL_PYTHON.",
    )


def worker_versions(root: Path, environment: Mapping[str, str]) -> set[Versions]:
    """Return what NeMo-RL's workers run on, in the environments that exist or that it will make."""
    versions = {_made(path) for path in workers_folder(root, environment).glob("*/pyvenv.cfg")}
    return versions or set(_to_be_made(root))


def workers_folder(root: Path, environment: Mapping[str, str]) -> Path:
    """Return where NeMo-RL has the environments of its workers, or will make them."""
    return Path(environment.get("NEMO_RL_VENV_DIR") or root / "venvs")


def _made(settings: Path) -> Versions:
    """Of an environment; a half-made one has no Ray, and NeMo-RL takes it as it is."""
    lines = settings.read_text(encoding="utf-8").splitlines()
    python = dict(line.partition(" = ")[::2] for line in lines).get("version_info", "unknown")
    packages = settings.parent.glob("lib/python3*/site-packages/ray-*.dist-info")
    versions = [path.stem.partition("-")[2] for path in packages]
    return Versions(python, versions[0] if versions else "none")


def _to_be_made(root: Path) -> Iterator[Versions]:
    """From .python-version and uv.lock, where NeMo-RL has them."""
    pinned, lock = root / ".python-version", root / "uv.lock"
    if not (pinned.is_file() and lock.is_file()):
        return
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    for package in packages:
        if package["name"] == "ray":
            yield Versions(pinned.read_text(encoding="utf-8").strip(), package["version"])
