"""Identity of a Hugging Face model by its content: its one name in caches and provenance.

A folder keeps its name when the weights in it change, and so does a model of the hub.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from data_prep.packaged_models import packaged_identity

#: In the identity of a model of the hub that was never loaded on this machine.
UNKNOWN = "@unknown"
#: Weights, configuration, chat template, and the tokenizers that are no JSON.
_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken"})
_NAMES = frozenset({"vocab.txt", "merges.txt"})
#: Hashing lets other threads run; more readers than this gain nothing on one disk.
_READERS = 8


def model_identity(name: str) -> str:
    """The hash of what a folder holds of a model, or a model of the hub with its commit.

    The commit is that of the copy on this machine: ask when the model has been loaded. A file is
    read once by a process, and again when its size or time has changed. What a package ships is
    known by its word and the hash of its weights.
    """
    if packaged := packaged_identity(name):
        return packaged
    folder = Path(name)
    if folder.is_dir():
        return f"sha256:{_hash_of(folder)}"
    config = try_to_load_from_cache(name, "config.json")  # in the folder of its commit
    return f"{name}@{Path(config).parent.name}" if isinstance(config, str) else name + UNKNOWN


def _hash_of(folder: Path) -> str:
    files = [file for file in sorted(folder.rglob("*")) if _counts(file)]
    with ThreadPoolExecutor(_READERS) as pool:
        contents = list(pool.map(_content_of, files))
    digest = hashlib.sha256()
    for file, content in zip(files, contents, strict=True):
        digest.update(file.relative_to(folder).as_posix().encode() + content)
    return digest.hexdigest()


def _counts(file: Path) -> bool:
    return file.is_file() and (file.suffix in _SUFFIXES or file.name in _NAMES)


def _content_of(file: Path) -> bytes:
    about = file.stat()
    return _read(file.resolve(), about.st_ino, about.st_size, about.st_mtime_ns)


@cache
def _read(file: Path, *_: int) -> bytes:
    """The SHA-256 of a file; the numbers tell a changed file from the one that was read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
