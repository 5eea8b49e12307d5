"""Make an environment with the packages of NeMo-RL's driver, from the uv.lock of a checkout.

    python tests/contract/locked_environment.py <checkout of NeMo-RL> <folder> [--python 3.13]

It is what `uv sync --locked` makes of the checkout without extras, apart from what is printed.
Torch comes with its CUDA libraries, so 6 GB are downloaded and kept.
"""

import argparse
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LOCAL_BUILD = re.compile(r"\+cu\d+")


def wanted(exported):
    """The requirements to install, and what of NeMo-RL's is left out or replaced, with why."""
    requirements, differences = [], []
    for line in exported:
        requirement = line.partition(" ;")[0]
        if " @ git+" in line:
            differences.append(f"{requirement}: left out, its source is not a package index")
            continue
        if _LOCAL_BUILD.search(requirement):
            differences.append(f"{requirement}: the package index's build of the same version")
        requirements.append(_LOCAL_BUILD.sub("", line))
    return requirements, differences


def exported(checkout):
    """Return the lock's pins for the driver: `name==version ; marker`."""
    options = ("--no-emit-workspace", "--no-hashes", "--no-annotate", "--no-header")
    command = ["uv", "export", "--quiet", "--frozen", "--project", str(checkout), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def make(checkout, folder, base):
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
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.13", help="a version, or the path of a Python")
    options = parser.parse_args()
    make(options.checkout, options.folder, options.python)
