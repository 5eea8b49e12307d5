"""Make the environment in which the real NeMo writes the checkpoints that the tests read.

    python tests/contract/nemo/environment.py

NeMo 2.4.1 wrote the recorded files. It asks for numpy 1 and can share no environment with the
project. It is needed only to write them again (write.py), not to test with them. 6.4 GB, most of it
torch's CUDA libraries, which no CPU needs; nothing is done where the folder exists.
"""

import os
import subprocess
import tempfile
from pathlib import Path

#: Names another folder, such as one on a larger disk.
FOLDER_VARIABLE = "EQUIPOISE_NEMO"
PACKAGES = (
    "nemo-toolkit[nlp]==2.4.1",
    # Which [nlp] does not bring.
    *("megatron-core==0.13.1", "nemo-run==0.4.0"),
    # What it was released with; it names no upper bounds.
    *("torch==2.13.0", "numpy<2", "setuptools<80", "pyarrow<21", "datasets<4"),
    *("leptonai<0.26", "pangu<5"),
)


def folder() -> Path:
    """Where the environment is, or will be."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().absolute()
    return Path.home() / ".cache" / "equipoise" / "contract" / "nemo-toolkit-2.4.1"


def make(destination: Path) -> None:
    """Install, and rename at the end, so that a folder that exists is whole."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as temporary:
        scratch = Path(temporary) / "environment"
        _run("uv", "venv", "--relocatable", "--python", "3.11", str(scratch))
        python = str(scratch / "bin" / "python")
        _run("uv", "pip", "install", "--python", python, *PACKAGES)
        scratch.rename(destination)


def _run(*command: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    if not folder().exists():
        make(folder())
    print(f"NeMo is in {folder()}")
