"""From the process that a user starts to NeMo-RL's own Python.

NeMo-RL's driver and its workers must have one Python, one Ray and NeMo-RL's locked packages, so
the training runs in NeMo-RL's environment, which stays as it is: ours lies beside it, see
containers/nemo_rl.sh. The process is replaced (`exec`): signals and exit codes are those of the
training.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import equipoise
from equipoise.config.nemo_rl.installation import (
    LAUNCHED,
    PATH_VARIABLE,
    PYTHON_VARIABLE,
    find_python,
    find_root,
    is_installed,
)
from equipoise.files.errors import EquipoiseError

SCRIPT = Path(equipoise.__file__).resolve().parents[1] / "containers" / "nemo_rl.sh"
UV_RUN = "Start it with `uv run`, which installs what is needed."


def hand_over(root: Path) -> NoReturn:
    """Go on in the Python of the NeMo-RL at `root`, with the same recipe and words."""
    _become(root, find_python(root), {LAUNCHED: "1"})


def complete_packages(missing: Sequence[str]) -> NoReturn:
    """Start again with what this Python is `missing`, where NeMo-RL's own was started.

    Raises `EquipoiseError` in any other Python.
    """
    root, this = find_root(), Path(sys.executable)
    if root and is_installed() and not sys.flags.ignore_environment:  # which reads no PYTHONPATH
        python = find_python(root)
        if python.parent.samefile(this.parent):
            _become(root, python, {})
    raise EquipoiseError(
        "launch.missing-packages",
        f"the Python {this} has no {', '.join(missing)}",
        UV_RUN,
    )


def _become(root: Path, python: Path, variables: dict[str, str]) -> NoReturn:
    if not SCRIPT.is_file():
        raise EquipoiseError(
            "launch.no-checkout",
            "Equipoise is installed here without its repository, and NeMo-RL's Python reads it "
            "from there",
            "Start the recipe in a clone of the repository.",
        )
    own = {PATH_VARIABLE: str(root), PYTHON_VARIABLE: str(python)}
    sys.stdout.flush()
    sys.stderr.flush()
    command = ["bash", str(SCRIPT), *sys.orig_argv[1:]]
    os.execvpe("bash", command, {**os.environ, **own, **variables})  # noqa: S606, S607
