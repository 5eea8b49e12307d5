"""Which Python has Megatron-Bridge: NeMo-RL keeps it in the environment of its Megatron workers."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.installation.assumptions import IMAGE
from equipoise.installation.nemo_rl import find_root

#: Names the Python that has Megatron-Bridge, where it is not in one of NeMo-RL's usual places.
MEGATRON_PYTHON = "MEGATRON_PYTHON"
#: NeMo-RL names a worker's environment after its class.
_WORKER = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"


def find_megatron_python() -> Path:
    """The Python that has Megatron-Bridge. Raises `EquipoiseError` with the next step if none."""
    for python in _pythons():
        if python.is_file():
            return python
    named = os.environ.get(MEGATRON_PYTHON)
    raise EquipoiseError(
        f"{MEGATRON_PYTHON} is {named}, which is no file"
        if named
        else "there is no "
        "Megatron-Bridge here, neither beside this Python nor in an environment of NeMo-RL's",
        f"Run the same command in the container {IMAGE}. In a checkout of "
        "NeMo-RL, `uv sync --locked --extra mcore` makes the environment (on a machine with "
        f"CUDA's compiler); then set {MEGATRON_PYTHON}=<checkout>/.venv/bin/python",
    )


def _pythons() -> Iterator[Path]:
    """Yield candidates, the likeliest first."""
    if named := os.environ.get(MEGATRON_PYTHON):
        yield Path(named).expanduser()
        return
    if _is_beside_us():
        yield Path(sys.executable)
    root = find_root()
    folder = os.environ.get("NEMO_RL_VENV_DIR") or (root / "venvs" if root else None)
    if folder:
        yield Path(folder) / _WORKER / "bin" / "python"


def _is_beside_us() -> bool:
    """Whether this Python has it; other packages are called `megatron`, too."""
    return bool(importlib.util.find_spec("megatron")) and bool(
        importlib.util.find_spec("megatron.bridge")
    )
