"""Megatron-Bridge, asked in a process of its own, in whichever Python has it.

What it loads and writes stays apart from this process: its environment is NeMo-RL's and not ours,
and Megatron's state is a process's.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from equipoise.checkpoints.tensors import refuse
from equipoise.installation.megatron import MEGATRON_PYTHON, find_megatron_python
from equipoise.installation.probe import without_python_settings

_SCRIPT = Path(__file__).with_name("bridge_script.py")
#: Those of a job of several processes, in which a conversion may run, too.
_OF_A_JOB = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_LINES_SHOWN = 12

#: Package -> version.
Versions = Mapping[str, str]


def import_model(model: Path, destination: Path) -> Versions:
    """Make Megatron's torch_dist of a folder of Hugging Face's. Raises `EquipoiseError`."""
    return _ask("import", model, destination)


def export_model(checkpoint: Path, config: Path, destination: Path) -> Versions:
    """Make Hugging Face's safetensors of an `iter_N`; `config` is a folder with config.json.

    Raises `EquipoiseError`.
    """
    return _ask("export", checkpoint, config, destination)


def _ask(action: str, *folders: Path) -> Versions:
    python = find_megatron_python()
    # -P: the script's own folder has a module megatron, too, which is not theirs.
    command = [
        str(python),
        "-P",
        str(_SCRIPT),
        action,
        *(str(folder.resolve()) for folder in folders),
    ]
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LINES_SHOWN:])
        refuse(
            f"Megatron-Bridge in {python} failed ({action} of {folders[0]}):\n{last}",
            f"{MEGATRON_PYTHON} names another Python that has it. NeMo-RL's container has the one "
            "that its runs use.",
        )
    versions: Versions = json.loads(done.stdout.splitlines()[-1])
    return versions


def _environment() -> dict[str, str]:
    """Return the variables of one process that sees no GPU, whatever the machine has."""
    variables = without_python_settings(os.environ)
    environment = {name: value for name, value in variables.items() if name not in _OF_A_JOB}
    return environment | {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
