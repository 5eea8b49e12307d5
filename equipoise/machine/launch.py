"""From the process that a user starts to NeMo-RL's own Python.

NeMo-RL's driver and its workers must have one Python, one Ray and NeMo-RL's locked packages, so
the training runs in NeMo-RL's environment, which stays as it is: ours lies beside it, see
overlay.py. The process is replaced (`exec`): signals and exit codes are those of the training.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from equipoise.config.nemo_rl.environment import LAUNCHED
from equipoise.config.nemo_rl.installation import (
    PATH_VARIABLE,
    PYTHON_VARIABLE,
    find_installation,
    find_python,
)
from equipoise.errors import EquipoiseError
from equipoise.machine.overlay import BESIDE, make_overlay
from equipoise.machine.python import Machine, look_at_machine
from equipoise.machine.software import UV_RUN, installed_version
from equipoise.terminal.console import Column, Reporter

#: uv's name for the environment of the project at hand, which for NeMo-RL is its own.
_PROJECT_ENVIRONMENT = "UV_PROJECT_ENVIRONMENT"
_IN_ITS_PROCESSES = ("equipoise.train.nemo_rl.actor", "equipoise.train.nemo_rl.dataset")
#: What `uv run` and our environment set for this process alone.
_OF_THIS_PROCESS = frozenset(
    {"PYTHONHOME", "UV", "UV_RUN_RECURSION_DEPTH", "VIRTUAL_ENV", _PROJECT_ENVIRONMENT}
)


@dataclass(frozen=True, slots=True)
class Handover:
    """A program to become."""

    python: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    def go(self) -> NoReturn:
        """Replace this process."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.python, [str(self.python), *self.arguments], dict(self.environment))  # noqa: S606


def hand_over(machine: Machine, reporter: Reporter) -> NoReturn:
    """Go on in NeMo-RL's Python, with the same recipe and words."""
    reporter.say(f"NeMo-RL's Python: {machine.python}")
    handover(machine, sys.orig_argv[1:], reporter).go()


def handover(machine: Machine, arguments: Sequence[str], reporter: Reporter) -> Handover:
    """These words to NeMo-RL's Python, which finds our packages beside its own."""
    overlay = overlay_of(machine, reporter)
    environment = launch_environment(machine.root, machine.python, overlay, machine.environment)
    return Handover(machine.python, tuple(arguments), environment)


def prepare(reporter: Reporter, *, dry_run: bool = False) -> None:
    """Make the overlay, say what NeMo-RL's Python sees, and import there what Ray will start.

    A dry run makes and imports nothing. Raises `EquipoiseError`.
    """
    machine = look_at_machine(find_installation().root, dict(os.environ))
    versions = {"Python": machine.python_info.python, **machine.python_info.versions}
    rows = [(name, version or "missing") for name, version in versions.items()]
    columns = (Column("what", folds=True), Column("version", folds=True))
    reporter.table(f"{machine.python}", columns, rows)
    if dry_run:
        missing = machine.python_info.missing(tuple(BESIDE))
        reporter.say(f"to install beside it: {', '.join(missing) or 'nothing'}")
        return
    overlay = overlay_of(machine, reporter)
    for folder in overlay:
        reporter.say(f"beside it: {folder}")
    environment = launch_environment(machine.root, machine.python, overlay, machine.environment)
    done = subprocess.run(
        [str(machine.python), "-c", f"import {', '.join(_IN_ITS_PROCESSES)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EquipoiseError(
            "launch.no-import",
            f"NeMo-RL's Python cannot import {' and '.join(_IN_ITS_PROCESSES)}: {last}",
            f"Is {machine.root} the NeMo-RL that {machine.python} belongs to, and whole?",
        )


def overlay_of(machine: Machine, reporter: Reporter) -> list[Path]:
    """The folders that lie beside NeMo-RL's packages."""
    missing = machine.python_info.missing(tuple(BESIDE))
    return make_overlay(machine.python, machine.python_info.python, missing, reporter.say)


def launch_environment(
    root: Path, python: Path, overlay: Sequence[Path], environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables of NeMo-RL's process: the user's, with NeMo-RL's Python in place of ours."""
    return {
        **completed_environment(python, [*overlay, root], environment),
        PATH_VARIABLE: str(root),
        PYTHON_VARIABLE: str(python),
        # Under `uv run` Ray would start its workers by `uv run` as well.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        LAUNCHED: "1",
    }


def completed_environment(
    python: Path, folders: Sequence[Path], environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables with which that Python finds its own programs and these folders first."""
    variables = {name: value for name, value in environment.items() if name not in _OF_THIS_PROCESS}
    ours = str(Path(sys.prefix) / "bin")
    programs = [entry for entry in _entries(environment, "PATH") if entry != ours]
    packages = [*map(str, folders), *_entries(environment, "PYTHONPATH")]
    venv = python.parents[1]
    return {
        **variables,
        **({_PROJECT_ENVIRONMENT: str(venv)} if (venv / "pyvenv.cfg").is_file() else {}),
        "PATH": os.pathsep.join([str(python.parent), *programs]),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages)),
    }


def _entries(environment: Mapping[str, str], name: str) -> list[str]:
    return [entry for entry in environment.get(name, "").split(os.pathsep) if entry]


def complete_packages(reporter: Reporter) -> None:
    """Start again with what this Python lacks, where NeMo-RL's own was started.

    Raises `EquipoiseError` in any other Python that lacks something.
    """
    missing = [name for name in BESIDE if installed_version(name) is None]
    if not missing:
        return
    python = Path(sys.executable)
    if not _is_nemo_rls(python) or sys.flags.ignore_environment:
        raise EquipoiseError(
            "launch.missing-packages",
            f"the Python {python} has no {', '.join(missing)}",
            UV_RUN,
        )
    overlay = make_overlay(python, platform.python_version(), missing, reporter.say)
    environment = completed_environment(python, overlay, os.environ)
    Handover(python, tuple(sys.orig_argv[1:]), environment).go()


def _is_nemo_rls(python: Path) -> bool:
    try:
        driver = find_python(find_installation().root)
    except EquipoiseError:
        return False
    return driver.parent.samefile(python.parent)
