"""NeMo-RL's Python: what it has and sees."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.config.nemo_rl.assumptions import OWN_CLUSTER
from equipoise.config.nemo_rl.installation import find_python, without_python_settings
from equipoise.errors import EquipoiseError
from equipoise.machine.overlay import BESIDE, NEEDED

_SCRIPT = Path(__file__).with_name("script.py")
_SECONDS = 180  # the first import of torch on a slow disk


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
    environment: Mapping[str, str]


def look_at_machine(root: Path, environment: Mapping[str, str]) -> Machine:
    """The Python of that NeMo-RL, and what it sees; takes seconds. Raises `EquipoiseError`."""
    python = find_python(root)
    return Machine(root, python, look(python, (*NEEDED, *BESIDE, "ray")), environment)


def look(python: Path, names: Sequence[str]) -> PythonInfo:
    """Ask a Python for itself, these distributions, its GPUs and Ray, within seconds.

    Raises `EquipoiseError` where it does not answer.
    """
    try:
        done = subprocess.run(
            [python, _SCRIPT, OWN_CLUSTER, *names],
            env=without_python_settings(os.environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise EquipoiseError(
            "nemo-rl.slow-python",
            f"NeMo-RL's Python {python} does not answer within {_SECONDS} seconds",
            "Look whether a Ray cluster is going down here, and whether RAY_ADDRESS names a live "
            "one: `ray status` tells.",
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise EquipoiseError(
            "nemo-rl.silent-python",
            f"NeMo-RL's Python {python} does not answer: {(reason or [type(error).__name__])[-1]}",
            f"Try it with `{python} -c 'import ray, torch'`, or name another one in "
            "NEMO_RL_PYTHON.",
        ) from error
    cluster = answer.pop("cluster")
    return PythonInfo(**answer, cluster=cluster["gpus"], problem=cluster["problem"])


def workers_folder(root: Path, environment: Mapping[str, str]) -> Path:
    """Return where NeMo-RL has the environments of its workers, or will make them."""
    return Path(environment.get("NEMO_RL_VENV_DIR") or root / "venvs")
