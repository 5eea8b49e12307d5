"""Make the folder of Inspect, which asks models in the tests.

    python tests/contract/inspect/environment.py

`uv run --with` puts Inspect over the project's packages; this is the same for tests, which have no
network. 250 MB; nothing is done where the folder exists.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Names another folder, such as one that is kept between runs of a build machine.
FOLDER_VARIABLE = "EQUIPOISE_INSPECT"
#: Its provider for OpenAI-compatible endpoints needs openai.
PACKAGES = ("inspect-ai==0.3.285", "openai>=3.4,<4")


def folder() -> Path:
    """Where it is, or will be."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().resolve()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = f"{PACKAGES[0].replace('==', '-')}-{python}"
    return Path.home() / ".cache" / "equipoise" / "contract" / name


def variables() -> dict[str, str]:
    """With these a Python has Inspect, and what it brings, over its own packages."""
    return os.environ | {"PYTHONPATH": str(folder())}


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
    print(f"Inspect is in {folder()}")
