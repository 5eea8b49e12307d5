"""Packages beside NeMo-RL's: Equipoise, and the few of ours that NeMo-RL lacks.

Two folders, which the driver and its Ray workers get on PYTHONPATH. They hold nothing that
NeMo-RL's environments have, so nothing of theirs is replaced, and nothing is installed there.
"""

import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import equipoise
from data_prep.files import create_folder
from equipoise.config.nemo_rl.installation import without_python_settings
from equipoise.errors import EquipoiseError

#: What we import and NeMo-RL's lock does not have; what of these is used needs only what it has.
BESIDE = {
    "bm25s": "0.3.16",
    "isal": "1.9.1",
    "regopy": "1.5.2",
    "tyro": "1.0.17",
}
#: Names the folder for both, where an image brings it or the home folder will not do.
FOLDER_VARIABLE = "EQUIPOISE_OVERLAY_DIR"
#: What our code imports in NeMo-RL's process, and NeMo-RL's lock has.
NEEDED = (
    *("aiohttp", "datasets", "filelock", "huggingface-hub", "jinja2", "markupsafe", "matplotlib"),
    *("numpy", "omegaconf", "packaging", "psutil", "pydantic", "pydantic-core", "python-dotenv"),
    *("pyyaml", "rich"),
    *("safetensors", "sentencepiece", "tokenizers", "torch", "transformers"),
    *("typing-extensions", "wandb", "xxhash"),
)
_OURS = ("data_prep", "environments", "equipoise")
_HOME = Path("~/.cache/equipoise/nemo_rl")


def make_overlay(
    python: Path, version: str, missing: Sequence[str], say: Callable[[str], None]
) -> list[Path]:
    """The folders for PYTHONPATH of that Python, which lacks these of `BESIDE`.

    What is there already is taken. Raises `EquipoiseError` where the packages cannot be had.
    """
    folders = [link_ours()]
    if missing:
        requirements = [f"{name}=={BESIDE[name]}" for name in sorted(missing)]
        folders.append(install(requirements, python, version, say))
    return folders


def link_ours() -> Path:
    """A folder with our packages alone, wherever they are: a checkout, or among others."""
    project = Path(equipoise.__file__).resolve().parents[1]

    def fill(folder: Path) -> None:
        for name in _OURS:
            (folder / name).symlink_to(project / name)

    return _made_once(_parent() / f"code-{_digest([str(project)])}", fill)


def install(
    requirements: Sequence[str], python: Path, version: str, say: Callable[[str], None]
) -> Path:
    """A folder with these packages for that Python, named by what is in it."""
    parent = _parent()

    def fill(folder: Path) -> None:
        say(f"beside NeMo-RL's packages: {', '.join(requirements)}, into {parent}")
        _run_uv(["--python", str(python), "--target", str(folder), *requirements], folder)

    minor = version.rpartition(".")[0]
    digest = _digest([minor, sysconfig.get_platform(), *requirements])
    return _made_once(parent / f"packages-{digest}", fill)


def _parent() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or _HOME).expanduser()


def _run_uv(arguments: Sequence[str], folder: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise EquipoiseError(
            "overlay.no-uv", "uv is not on the PATH", "Install it with `pip install uv`."
        )
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
            "overlay.failed-installation",
            f"what belongs beside NeMo-RL's packages cannot be installed:\n{done.stderr.strip()}",
            "It needs the package index once. Without a network here, set "
            f"{FOLDER_VARIABLE} to a folder that this machine sees and fill it where there is one, "
            "with the same NeMo-RL: recipes/prepare_nemo_rl.py",
        )


def _made_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, whole or not at all, however many processes start at once."""
    if folder.is_dir():
        return folder
    try:
        create_folder(folder, fill)
    except OSError as error:
        if not folder.is_dir():  # no process was faster
            raise EquipoiseError(
                "overlay.unwritable-folder",
                f"{folder} cannot be made: {error.strerror}",
                f"Set {FOLDER_VARIABLE} to a folder that can be written to.",
            ) from error
    return folder


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
