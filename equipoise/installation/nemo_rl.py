"""Search for NeMo-RL, without importing it, and checks of what is found."""

import importlib.util
import os
import runpy
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.installation.assumptions import EVERY_RUN, IMAGE, RELEASE, TRIED, Need, unmet
from equipoise.installation.environment import CONTAINER_ENVIRONMENT, is_nemo_rls

#: Names a checkout of NeMo-RL, for machines without its container.
PATH_VARIABLE = "NEMO_RL_PATH"
#: Names the Python that has what NeMo-RL's driver needs, where it is not in the usual place.
PYTHON_VARIABLE = "NEMO_RL_PYTHON"
_CONTAINER_ROOT = Path("/opt/nemo-rl")


@dataclass(frozen=True, slots=True)
class Installation:
    """A NeMo-RL that can be run; `root` holds nemo_rl/ and examples/."""

    root: Path

    @property
    def script(self) -> Path:
        """The version's own driver."""
        return self.root / "examples" / "run_grpo.py"

    @property
    def base_config(self) -> Path:
        """The version's own configuration, which has every key that its code reads."""
        return self.root / "examples" / "configs" / "grpo_math_1B.yaml"

    @property
    def version(self) -> str:
        """The number in its package, and the commit where it is a checkout."""
        namespace = runpy.run_path(str(self.root / "nemo_rl" / "package_info.py"))
        return str(namespace["__version__"])

    def make_importable(self) -> None:
        """For this process and for the Ray workers that it will start."""
        root = str(self.root)
        if root not in sys.path:
            sys.path.insert(0, root)
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if root not in entries:
            os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in (root, *entries) if entry)


def is_installed() -> bool:
    """Whether a NeMo-RL and its Python can be found, of whatever version."""
    root = find_root()
    return root is not None and next(_pythons(root), None) is not None


def find_installation(needs: Collection[Need] = EVERY_RUN) -> Installation:
    """The NeMo-RL at `NEMO_RL_PATH`, or else the importable one.

    Raises `EquipoiseError` with the next step when there is none, or when it lacks what these
    `needs` assume of it.
    """
    root = find_root()
    if root is None:
        raise EquipoiseError(_nothing_found(), _remedy())
    missing = list(unmet(root, needs))
    if missing:
        raise EquipoiseError(
            f"the NeMo-RL at {root} cannot be used: {'; '.join(missing)}",
            f"Equipoise was tried with {TRIED}. {_remedy()}",
        )
    return Installation(root)


def find_python(root: Path) -> Path:
    """The Python of NeMo-RL's driver, which runs the training.

    Raises `EquipoiseError` with the next step when there is none.
    """
    for python in _pythons(root):
        return python
    raise EquipoiseError(
        f"the NeMo-RL at {root} has no Python environment",
        f"Run `uv sync --locked` in {root}, or name the Python of its driver in {PYTHON_VARIABLE}.",
    )


def _pythons(root: Path) -> Iterator[Path]:
    """Yield the driver's possible Pythons, likeliest first.

    A path is taken as it is: resolved, the Python of an environment would be that of no one.
    """
    if named := os.environ.get(PYTHON_VARIABLE):
        candidates = [Path(named).expanduser()]
    else:
        candidates = [folder / "bin" / "python" for folder in _environments(root)]
        if _importable_root() == root:
            candidates.append(Path(sys.executable))
    yield from (path for path in candidates if path.is_file())


def _environments(root: Path) -> Iterator[Path]:
    """Yield NeMo-RL's possible environments; uv's variable may name ours, too."""
    if named := os.environ.get("UV_PROJECT_ENVIRONMENT"):
        folder = root / Path(named).expanduser()
        if is_nemo_rls(folder):
            yield folder
    yield root / ".venv"
    yield CONTAINER_ENVIRONMENT


def find_root() -> Path | None:
    """The folder with nemo_rl/ in it, of whatever version; None without one."""
    path = os.environ.get(PATH_VARIABLE)
    if path:
        root = Path(path).expanduser().resolve()
        return root if _is_package(root / "nemo_rl") else None
    in_container = _CONTAINER_ROOT if _is_package(_CONTAINER_ROOT / "nemo_rl") else None
    return _importable_root() or in_container


def _importable_root() -> Path | None:
    spec = importlib.util.find_spec("nemo_rl")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return next((folder.parent for folder in folders if _is_package(folder)), None)


def _is_package(folder: Path) -> bool:
    return (folder / "algorithms" / "grpo.py").is_file()


def _nothing_found() -> str:
    path = os.environ.get(PATH_VARIABLE)
    if path:
        return f"{PATH_VARIABLE} is {path}, which holds no nemo_rl/algorithms/grpo.py"
    if placeholder_is_installed():
        return (
            "the installed package nemo-rl is the empty placeholder that has its name on "
            "the package index, and holds no code"
        )
    return "NeMo-RL is not installed here"


def placeholder_is_installed() -> bool:
    """Whether the empty package is here that has NeMo-RL's name on the package index."""
    try:
        return metadata.version("nemo-rl") == "0.0.0"
    except metadata.PackageNotFoundError:
        return False


def _remedy() -> str:
    return (
        f"Start it in the container {IMAGE}, or set {PATH_VARIABLE} to a checkout of "
        f"NVIDIA-NeMo/RL at {RELEASE}; pip cannot install it."
    )
