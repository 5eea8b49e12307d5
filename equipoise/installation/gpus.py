"""NVIDIA's driver with its GPUs, and the torch that would use them, without importing torch.

The driver is asked through nvidia-smi, which comes with it and starts no CUDA context. A driver
runs what was built for its own CUDA and for older ones, and within one major version for newer
ones too: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""

import csv
import re
import runpy
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import EquipoiseError

_FIELDS = ("index", "name", "memory.total", "memory.used", "driver_version", "compute_cap")
_CUDA = re.compile(r"CUDA Version:\s*([\d.]+)")
_SECONDS = 10
_MIB = 2**20
#: What hides GPUs from a process; NVIDIA's containers read the second one.
_HIDING = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver sees it; memory in bytes."""

    index: int
    name: str
    total: int
    used: int
    capability: str  # such as 9.0


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver; `cuda` is the newest one that it was made for, empty where it is silent."""

    version: str
    cuda: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A torch; `cuda` is the one that it was built for, None for a build without."""

    version: str
    cuda: str | None


def read_driver() -> Driver | None:
    """Ask nvidia-smi; None without one. Raises `EquipoiseError` where it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    rows = _run(program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    return parse_driver(rows, _run(program))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stdout", None) or str(error)
        line = (str(output).strip().splitlines() or [type(error).__name__])[0]
        raise EquipoiseError(
            f"nvidia-smi fails: {line}",
            "Reload the driver or restart the node: kernel module and library must match.",
        ) from error
    return done.stdout


def parse_driver(rows: str, page: str) -> Driver:
    """The driver of the rows of `--query-gpu`, and of the page that nvidia-smi shows."""
    cells = [row for row in csv.reader(rows.splitlines(), skipinitialspace=True) if row]
    gpus = tuple(
        Gpu(int(index), name, _bytes(total), _bytes(used), capability)
        for index, name, total, used, _, capability in cells
    )
    cuda = _CUDA.search(page)
    return Driver(cells[0][4] if cells else "", cuda[1] if cuda else "", gpus)


def _bytes(mib: str) -> int:
    """Memory in MiB; a GPU whose memory is that of the machine says [N/A]."""
    return int(mib) * _MIB if mib.isdigit() else 0


def torch_build(site_packages: Path) -> TorchBuild | None:
    """The torch in a folder of packages; None without one."""
    path = site_packages / "torch" / "version.py"
    if not path.is_file():
        return None
    names = runpy.run_path(str(path))
    return TorchBuild(str(names["__version__"]), names.get("cuda"))


def mismatch(driver: Driver, build: TorchBuild) -> str | None:
    """Why that torch cannot use the GPUs of this driver; None where it can."""
    if build.cuda is None:
        return f"torch {build.version} was built without CUDA, and there are GPUs"
    if driver.cuda and _major(driver.cuda) < _major(build.cuda):
        return (
            f"torch {build.version} was built for CUDA {build.cuda}, and the driver "
            f"{driver.version} runs CUDA {driver.cuda} at most"
        )
    return None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def hidden_by(environment: Mapping[str, str]) -> str | None:
    """The variable that hides GPUs from this process, with its value; None where none does."""
    names = (name for name in _HIDING if environment.get(name) not in (None, "all"))
    return next((f"{name}={environment[name]!r}" for name in names), None)
