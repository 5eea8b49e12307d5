"""Make the folders of packages that contract tests lay over the project's environment.

    python tests/contract/packages.py [megatron]   # all of the table, or one

Tests have no network, and these packages pin others than the project's. A folder is named by its
versions and this Python; nothing is done where it exists.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

#: Names another parent of the folders, such as one that is kept between runs of a build machine.
PARENT_VARIABLE = "EQUIPOISE_CONTRACT_PACKAGES"
THIS_PYTHON = ("--python", sys.executable)

_WITH_BRIDGE = (
    *("absl-py==2.5.1", "einops==0.8.2", "hydra-core==1.3.2", "nvidia-modelopt==0.47.0"),
    *("pulp==3.3.2", "tensorboard==2.21.0"),
)


@dataclass(frozen=True, slots=True)
class Packages:
    """One folder: the packages that name it, and what `uv pip install` fills it with.

    `installs` are the words of one call each, by the folder's subfolder that they fill.
    """

    names: Sequence[str]
    installs: Sequence[tuple[str, Sequence[str]]]

    @property
    def folder(self):
        """The path of the folder, which need not exist yet."""
        cache = Path.home() / ".cache" / "equipoise" / "contract"
        parent = Path(os.environ.get(PARENT_VARIABLE) or cache).expanduser().resolve()
        versions = "-".join(name.replace("==", "-") for name in self.names)
        return parent / f"{versions}-python{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def variables(self):
        """With these a Python has the packages over its own."""
        return os.environ | {"PYTHONPATH": str(self.folder)}

    def make(self):
        """Install beside the folder and rename, so that a folder that exists is whole."""
        if self.folder.exists():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as temporary:
            scratch = Path(temporary) / "packages"
            for subfolder, words in self.installs:
                command = ["uv", "pip", "install", "--target", str(scratch / subfolder), *words]
                print("+", *command, flush=True)
                subprocess.run(command, check=True)
            scratch.rename(self.folder)


def _bridge(bridge, core):
    """Megatron-Bridge and Megatron core, and what else their imports need.

    Both ask for Transformer Engine and other packages that are built for a GPU. Their own Python
    code runs without them, but for a module that no test imports; the wheels' names say 3.12.
    """
    names = (f"megatron-bridge=={bridge}", f"megatron-core=={core}")
    return Packages(
        names,
        (
            ("", ("--no-deps", *names, "--python-version", "3.12")),
            ("", ("--no-deps", *_WITH_BRIDGE, *THIS_PYTHON)),
        ),
    )


#: The nearest releases to what NeMo-RL v0.8.0, in the environment with its versions, and v0.7.0
#: carry; 70 MB.
OF_V080 = version("transformers").startswith("5.12.")
MEGATRON = _bridge("0.6.2", "0.19.2") if OF_V080 else _bridge("0.5.1", "0.18.2")
#: The project has 0.4.0, with which NeMo-RL's worker starts. That one writes safetensors with torch
#: 2.11 alone, so that a later release writes them; 15 MB.
AUTOMODEL = Packages(
    ("nemo-automodel==0.7.0",), [("", ("--no-deps", "nemo-automodel==0.7.0", *THIS_PYTHON))]
)
#: It asks for Python 3.13; its server layer runs on this one with a few packages more. They have a
#: folder of their own: Gym moves its own to the end of the path, where the project's openai would
#: win; 115 MB.
GYM = Packages(
    ("nemo-gym==0.7.0",),
    (
        ("gym", ("--no-deps", "--python-version", "3.14", "nemo-gym==0.7.0")),
        (
            "beside",
            (
                *("--no-deps", *THIS_PYTHON, "asttokens==3.0.2", "devtools==0.12.2"),
                *("executing==2.3.0", "httptools==0.9.0", "openai==2.44.0", "pydot==4.0.1"),
                "yappi==1.7.6",
            ),
        ),
    ),
)
#: Its provider for OpenAI-compatible endpoints needs openai; 250 MB.
INSPECT = Packages(
    ("inspect-ai==0.3.285",), [("", ("inspect-ai==0.3.285", "openai>=3.4,<4", *THIS_PYTHON))]
)
#: It brings an ANTLR that omegaconf reads from 2.4 on; 170 MB.
VERIFIERS = Packages(
    ("verifiers==0.4.0",), [("", ("verifiers==0.4.0", "omegaconf==2.4.0", *THIS_PYTHON))]
)

#: By the name that the command line takes.
TABLE: Mapping[str, Packages] = {
    "megatron": MEGATRON,
    "automodel": AUTOMODEL,
    "gym": GYM,
    "inspect": INSPECT,
    "verifiers": VERIFIERS,
}
#: Gym imports these, and the project has them with its extra `rehearse` alone.
_GYM_IMPORTS = ("hydra", "orjson", "ray")


def missing(name):
    """Return why a test cannot use the packages, as its reason to skip; empty if it can."""
    folder = TABLE[name].folder
    if not folder.exists():
        return f"{folder} is not there; tests/contract/packages.py {name} makes it"
    lacking = [module for module in _GYM_IMPORTS if importlib.util.find_spec(module) is None]
    if name == "gym" and lacking:
        return f"NeMo Gym imports {', '.join(lacking)}: add --extra rehearse"
    return ""


if __name__ == "__main__":
    for word in sys.argv[1:] or TABLE:
        TABLE[word].make()
        print(f"{word}: {TABLE[word].folder}")
