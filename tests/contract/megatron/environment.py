"""Make the folder of packages that the checks of Megatron-Bridge import.

    python tests/contract/megatron/environment.py [0.3.1]

Megatron-Bridge and megatron-core ask for Transformer Engine and other packages that are built for a
GPU, and for Python 3.12. Their own code runs without them, so the folder holds these two and what
else their imports need, and nothing that the project's environment has: torch and transformers are
the project's, but that Megatron-Bridge 0.3.1 needs an older transformers, which is in its folder.
It stays outside that environment, where other packages would take `megatron` for Megatron-LM. About
70 MB (0.3.1: 120 MB) in a few seconds; nothing is done where the folder exists.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Names another folder, such as one that is kept between runs of a build machine.
FOLDER_VARIABLE = "EQUIPOISE_MEGATRON"
#: The nearest release to what NeMo-RL v0.7.0 carries.
NEAREST = "0.5.1"
_FOR_BOTH = (
    *("absl-py==2.5.1", "einops==0.8.2", "hydra-core==1.3.2", "nvidia-modelopt==0.47.0"),
    *("pulp==3.3.2", "tensorboard==2.21.0"),
)
#: Megatron-Bridge -> the megatron-core that goes with it, and what else the folder holds.
PAIRS = {
    NEAREST: ("0.18.2", _FOR_BOTH),
    "0.3.1": (
        "0.16.1",
        (*_FOR_BOTH, "transformers==4.57.6", "huggingface-hub==0.36.2", "datasets==5.0.1"),
    ),
}


def folder(bridge: str = NEAREST) -> Path:
    """Where the packages are, or will be; one folder for each set of versions and each Python."""
    if bridge == NEAREST and (named := os.environ.get(FOLDER_VARIABLE)):
        return Path(named).expanduser().resolve()
    versions = "-".join(package.replace("==", "-") for package in _megatron(bridge))
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Path.home() / ".cache" / "equipoise" / "contract" / f"{versions}-{python}"


def _megatron(bridge: str) -> tuple[str, str]:
    core, _ = PAIRS[bridge]
    return f"megatron-bridge=={bridge}", f"megatron-core=={core}"


def make(bridge: str) -> None:
    """Install beside the folder and rename, so that a folder that exists is whole."""
    destination, (_, others) = folder(bridge), PAIRS[bridge]
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as temporary:
        packages = Path(temporary) / "packages"
        # Python code but for a module that nobody here imports; the wheels' names say 3.12.
        _install(packages, *_megatron(bridge), "--python-version", "3.12")
        _install(packages, *others, "--python", sys.executable)
        packages.rename(destination)


def _install(target: Path, *words: str) -> None:
    command = ["uv", "pip", "install", "--no-deps", "--target", str(target), *words]
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    bridge = sys.argv[1] if sys.argv[1:] else NEAREST
    if not folder(bridge).exists():
        make(bridge)
    print(f"Megatron's packages are in {folder(bridge)}")
