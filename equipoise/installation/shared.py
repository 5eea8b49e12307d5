"""Whether the other nodes of a job see what this one writes: through Ray, or through Slurm."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from equipoise.errors import EquipoiseError
from equipoise.installation.probe import without_python_settings

_SCRIPT = Path(__file__).with_name("shared_script.py")
_SECONDS = 180
#: Each node of the job prints its name and the files that it lacks.
_SHELL = (
    'printf %s "$SLURMD_NODENAME"; for f in "$@"; do [ -e "$f" ] || printf "\\t%s" "$f"; done; echo'
)

#: Node -> the folders that it does not see.
Unseen = Mapping[str, Sequence[Path]]


def unseen_by_ray(python: Path, folders: Sequence[Path]) -> Unseen:
    """Ask the Ray cluster that NeMo-RL's Python joins. Raises `EquipoiseError`."""
    with _marked(folders) as marks:
        output = _run([str(python), str(_SCRIPT), *marks], "the nodes of the Ray cluster")
        answer = json.loads(output.splitlines()[-1])
        return {node: [marks[name] for name in names] for node, names in answer.items()}


def unseen_by_slurm(srun: str, nodes: int, folders: Sequence[Path]) -> Unseen:
    """Ask the Slurm job that this process is in. Raises `EquipoiseError`."""
    options = ("--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    with _marked(folders) as marks:
        command = [srun, *options, "--input=none", "/bin/sh", "-c", _SHELL, "sh", *marks]
        output = _run(command, "the nodes of the Slurm job")
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


def _run(command: Sequence[str], who: str) -> str:
    try:
        done = subprocess.run(
            command,
            env=without_python_settings(os.environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        last = (str(output).strip().splitlines() or [type(error).__name__])[-1]
        raise EquipoiseError(
            f"{who} cannot be asked: {last}", "Look at the job: `ray status`, or `squeue`."
        ) from error
    return done.stdout
