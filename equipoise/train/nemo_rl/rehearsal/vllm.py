"""Who generates in a rehearsal: vLLM itself, where its environment is named, or a stand-in."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from equipoise.errors import EquipoiseError

#: The Python of an environment with vLLM's CPU build, and this environment's Ray and Python.
PYTHON_VARIABLE = "EQUIPOISE_VLLM_PYTHON"
#: Tells vLLM's own process, which is none of Ray's workers, how its worker calls the device.
DEVICE_VARIABLE = "EQUIPOISE_DEVICE"
#: The smallest attention heads that vLLM computes on a CPU.
HEAD_SIZE = 32
_MODULES = "equipoise.train.nemo_rl.rehearsal"


@dataclass(frozen=True, slots=True)
class GenerationWorker:
    """The full name of the class of NeMo-RL's generation workers, and the Python that runs them."""

    name: str
    python: str


def generation_worker(asynchronous: bool = False) -> GenerationWorker:
    """VLLM's where its Python is named, else the stand-in's."""
    kind = "Async" if asynchronous else ""
    if python := vllm_python():
        return GenerationWorker(f"{_MODULES}.vllm_worker.Cpu{kind}VllmWorker", python)
    module = "async_generation_worker" if asynchronous else "generation_worker"
    return GenerationWorker(f"{_MODULES}.{module}.Cpu{kind}GenerationWorker", sys.executable)


@cache  # Ray's workers are started without this process's CUDA_VISIBLE_DEVICES
def on_gpus() -> bool:
    """Whether a rehearsal takes GPUs: torch sees one, and this Python has vLLM beside it."""
    if find_spec("vllm") is None:
        return False
    import torch  # takes seconds, and is asked only where it decides something

    return torch.cuda.is_available()


def vllm_python() -> str | None:
    """Return `EQUIPOISE_VLLM_PYTHON`, if set. Raises `EquipoiseError` when that is no file."""
    python = os.environ.get(PYTHON_VARIABLE)
    if python and not Path(python).is_file():
        raise EquipoiseError(
            "rehearsal.no-vllm-python",
            f"{PYTHON_VARIABLE} is {python}, which is no file",
            "Name the bin/python that tests/contract/vllm_environment.py has made, or unset it.",
        )
    return python or None
