"""What stands beside NeMo-RL's packages: ours, and the few of ours that it lacks.

Two folders, which the driver and its Ray workers get on PYTHONPATH. They hold nothing that
NeMo-RL's environments have, so nothing of theirs is replaced, and nothing is installed there.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import equipoise
from equipoise.engines.nemo_rl.probe import Seen, without_python_settings
from equipoise.errors import EquipoiseError

#: What our environments import and NeMo-RL's lock does not have, without what these need: numpy.
BESIDE = {"bm25s": "0.3.16", "faiss-cpu": "1.15.1", "regopy": "1.5.2"}
#: Names the folder for `BESIDE`, where an image brings it or the home folder will not do.
FOLDER_VARIABLE = "EQUIPOISE_OVERLAY_DIR"
_OURS = ("data_prep", "environments", "equipoise")
_HOME = Path("~/.cache/equipoise/nemo_rl")


def make_overlay(python: Path, seen: Seen, say: Callable[[str], None]) -> list[Path]:
    """The folders for PYTHONPATH; made where they are not there yet.

    Raises `EquipoiseError` where the packages cannot be had.
    """
    missing = seen.missing(sorted(BESIDE))
    folders = [link_ours()]
    if missing:
        requirements = [f"{name}=={BESIDE[name]}" for name in missing]
        folders.append(install(requirements, python, seen, say))
    return folders


def link_ours() -> Path:
    """A folder with our packages alone, wherever they are: a checkout, or among others."""
    project = Path(equipoise.__file__).parents[1]

    def fill(folder: Path) -> None:
        for name in _OURS:
            (folder / name).symlink_to(project / name)

    return _made_once(_HOME.expanduser() / f"code-{_digest([str(project)])}", fill)


def install(
    requirements: Sequence[str], python: Path, seen: Seen, say: Callable[[str], None]
) -> Path:
    """A folder with these packages for that Python, named by its content."""
    parent = Path(os.environ.get(FOLDER_VARIABLE) or _HOME).expanduser()
    minor = seen.python.rpartition(".")[0]

    def fill(folder: Path) -> None:
        say(f"beside NeMo-RL's packages: {', '.join(requirements)}, into {parent}")
        _run_uv(["--python", str(python), "--target", str(folder), *requirements], folder)

    digest = _digest([minor, seen.platform, *requirements])
    return _made_once(parent / f"packages-{digest}", fill)


def _run_uv(arguments: Sequence[str], folder: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise EquipoiseError("uv is not on the PATH", "Install it with `pip install uv`.")
    done = subprocess.run(
        [uv, "pip", "install", "--no-deps", *arguments],
        cwd=folder,  # where no project has settings of its own
        env=without_python_settings(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EquipoiseError(
            f"what stands beside NeMo-RL's packages cannot be installed:\n{done.stderr.strip()}",
            "It needs the package index once. Without a network here, set "
            f"{FOLDER_VARIABLE} to a folder that this machine sees and fill it where there is one, "
            "with the same NeMo-RL: recipes/prepare_nemo_rl.py",
        )


def _made_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, whole or not at all, however many processes start at once."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as name:
        made = Path(name) / folder.name
        made.mkdir()
        fill(made)
        if not folder.is_dir():
            made.rename(folder)
    return folder


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
