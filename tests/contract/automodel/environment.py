"""Make the folder of the Automodel that writes checkpoints here.

    python tests/contract/automodel/environment.py

The project's environment has Automodel 0.4.0, with which NeMo-RL's worker starts. That one writes
safetensors with torch 2.11 alone, so that a later release writes them: Python code alone, with the
project's torch and transformers. 15 MB in a few seconds; nothing is done where the folder exists.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Names another folder, such as one that is kept between runs of a build machine.
FOLDER_VARIABLE = "EQUIPOISE_AUTOMODEL"
AUTOMODEL = "nemo-automodel==0.7.0"


def folder() -> Path:
    """Where it is, or will be; one folder for each version and each Python."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().resolve()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = f"{AUTOMODEL.replace('==', '-')}-{python}"
    return Path.home() / ".cache" / "equipoise" / "contract" / name


def make(destination: Path) -> None:
    """Install beside it and rename, so that a folder that exists is whole."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as temporary:
        packages = Path(temporary) / "packages"
        command = ["uv", "pip", "install", "--no-deps", "--python", sys.executable]
        command += ["--target", str(packages), AUTOMODEL]
        print("+", *command, flush=True)
        subprocess.run(command, check=True)
        packages.rename(destination)


if __name__ == "__main__":
    if not folder().exists():
        make(folder())
    print(f"Automodel is in {folder()}")
