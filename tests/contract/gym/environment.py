"""Make the folder of NeMo Gym, whose own server layer the tests start.

    python tests/contract/gym/environment.py

The package asks for Python 3.13; its server layer, Python code alone, runs on this one with what
the project's environment has and a few packages more. 115 MB; nothing is done where the folder
exists.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Names another folder, such as one that is kept between runs of a build machine.
FOLDER_VARIABLE = "EQUIPOISE_NEMO_GYM"
NEMO_GYM = "nemo-gym==0.7.0"
#: What it imports and the project does not, and the one version of openai that it takes.
BESIDE = (
    "asttokens==3.0.2",
    "devtools==0.12.2",
    "executing==2.3.0",
    "httptools==0.9.0",
    "openai==2.44.0",
    "pydot==4.0.1",
    "yappi==1.7.6",
)
#: What it imports and the project has with its extra `rehearse` alone.
FROM_REHEARSE = ("hydra", "orjson", "ray")


def folder() -> Path:
    """Where it is, or will be, in gym/, and what it needs in beside/.

    Two folders: it moves its own to the end of the path, where the project's openai would win.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().resolve()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = f"{NEMO_GYM.replace('==', '-')}-{python}"
    return Path.home() / ".cache" / "equipoise" / "contract" / name


def unavailable() -> str:
    """Return why NeMo Gym cannot be started here, as a test's reason to skip; empty if it can."""
    if not folder().exists():
        return f"{folder()} is not there; make it with gym/environment.py"
    lacking = [name for name in FROM_REHEARSE if importlib.util.find_spec(name) is None]
    return f"NeMo Gym imports {', '.join(lacking)}: add --extra rehearse" if lacking else ""


def make(destination: Path) -> None:
    """Install beside it and rename, so that a folder that exists is whole."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as temporary:
        packages = Path(temporary) / "packages"
        for words in (
            (packages / "gym", "--python-version", "3.14", NEMO_GYM),
            (packages / "beside", "--python", sys.executable, *BESIDE),
        ):
            command = ["uv", "pip", "install", "--no-deps", "--target", *map(str, words)]
            print("+", *command, flush=True)
            subprocess.run(command, check=True)
        packages.rename(destination)


if __name__ == "__main__":
    if not folder().exists():
        make(folder())
    print(f"NeMo Gym is in {folder()}")
