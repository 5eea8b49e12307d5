"""Make the folder of verifiers, whose own command the tests start.

    python tests/contract/verifiers/environment.py

With what it brings it lies over the project's packages; tests have no network. 170 MB; nothing is
done where the folder exists.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Names another folder, such as one that is kept between runs of a build machine.
FOLDER_VARIABLE = "EQUIPOISE_VERIFIERS"
#: It brings an ANTLR that omegaconf reads from 2.4 on.
PACKAGES = ("verifiers==0.4.0", "omegaconf==2.4.0")


def folder() -> Path:
    """Where it is, or will be."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().resolve()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = f"{PACKAGES[0].replace('==', '-')}-{python}"
    return Path.home() / ".cache" / "equipoise" / "contract" / name


def make(destination: Path) -> None:
    """Install beside it and rename, so that a folder that exists is whole."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as temporary:
        packages = Path(temporary) / "packages"
        command = ["uv", "pip", "install", "--python", sys.executable, "--target", str(packages)]
        print("+", *command, *PACKAGES, flush=True)
        subprocess.run([*command, *PACKAGES], check=True)
        packages.rename(destination)


if __name__ == "__main__":
    if not folder().exists():
        make(folder())
    print(f"verifiers is in {folder()}")
