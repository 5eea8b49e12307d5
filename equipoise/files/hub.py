"""The Hugging Face hub: whether it can be reached, found out once, and files of its data sets."""

import hashlib
import ssl
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError

from equipoise.files.packaged_models import packaged_identity

#: How an address of a data set on the hub begins; OWNER/NAME follows, and perhaps a file.
_DATA_SETS = "hf://datasets/"
#: For names, proxies and connections together; an answer takes a tenth of a second.
_SECONDS = 10.0


def offline_reason() -> str | None:
    """Say that and why the hub gives nothing; None where it may.

    A hub that cannot be reached is told to its client: from then on that takes what is on this
    machine, and nothing else, at once.
    """
    if constants.HF_HUB_OFFLINE and not _unreachable.cache_info().currsize:
        return "the Hugging Face hub is not asked here (HF_HUB_OFFLINE)"
    return _unreachable()


@cache
def _unreachable() -> str | None:
    problems: SimpleQueue[str | None] = SimpleQueue()
    # A thread that is left behind: a name server may take minutes.
    Thread(
        target=lambda: problems.put(_connection_problem(constants.ENDPOINT)), daemon=True
    ).start()
    try:
        problem = problems.get(timeout=_SECONDS)
    except Empty:
        problem = f"no answer within {_SECONDS:g} seconds"
    if problem is None:
        return None
    constants.HF_HUB_OFFLINE = True
    return f"the Hugging Face hub cannot be reached: {problem}"


def missing_reason(name: str, *files: str) -> str | None:
    """Say why a model of the hub cannot be had; None for a folder, and where it may be had.

    It is on this machine if the hub's cache has one of `files`. The hub is asked all the same: its
    client looks there for what a copy lacks, and would wait minutes for one that does not answer.
    """
    reason = None if is_folder_name(name) else offline_reason()
    if reason is None:
        return None
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
        return None
    return f"{name} is not on this machine, and {reason}"


def is_folder_name(name: str) -> bool:
    """Tell whether the name of a model can only be that of a folder, and of none on the hub."""
    return name.count("/") > 1 or name.startswith((".", "/", "~")) or Path(name).is_dir()


def local_copy(source: str) -> Path:
    """A path, or where the JSON lines of `hf://datasets/OWNER/NAME[/FILE]` are on this machine.

    They are downloaded once. Raises `ValueError` where they cannot be had.
    """
    if not source.startswith(_DATA_SETS):
        return Path(source).expanduser()
    owner, _, remainder = source.removeprefix(_DATA_SETS).partition("/")
    name, _, file = remainder.partition("/")
    offline_reason()  # tells the client if no hub can be reached
    try:
        if file:
            return Path(hf_hub_download(f"{owner}/{name}", file, repo_type="dataset"))
        folder = snapshot_download(f"{owner}/{name}", repo_type="dataset", allow_patterns="*.jsonl")
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{source} cannot be had: {reason}. Without a network name a file or folder that you "
            "have brought here"
        ) from error
    return Path(folder)


def _connection_problem(url: str) -> str | None:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_SECONDS)  # noqa: S310
    except urllib.error.HTTPError:
        return None  # an answer
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):  # the hub's client may know other certificates
            return None
        return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return None


# --- model identity -------------------------------------------------------------------------------
# Identity of a Hugging Face model by its content: its one name in caches and provenance.
#
# A folder keeps its name when the weights in it change, and so does a model of the hub.


#: In the identity of a model of the hub that was never loaded on this machine.
UNKNOWN = "@unknown"
#: Weights, configuration, chat template, and tokenizers that are not JSON.
_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken"})
_NAMES = frozenset({"vocab.txt", "merges.txt"})
#: Hashing lets other threads run; more readers than this gain nothing on one disk.
_READERS = 8


def model_identity(name: str) -> str:
    """Hash a model's folder, or name a model of the hub with its commit.

    The commit is that of the copy on this machine: ask when the model has been loaded. A file is
    read once by a process, and again when its size or time has changed. What a package ships is
    known by its word and the hash of its weights.
    """
    if packaged := packaged_identity(name):
        return packaged
    folder = Path(name)
    if folder.is_dir():
        files = [
            file
            for file in sorted(folder.rglob("*"))
            if file.is_file() and (file.suffix in _SUFFIXES or file.name in _NAMES)
        ]
        with ThreadPoolExecutor(_READERS) as pool:
            contents = list(pool.map(_content_of, files))
        digest = hashlib.sha256()
        for file, content in zip(files, contents, strict=True):
            digest.update(file.relative_to(folder).as_posix().encode() + content)
        return f"sha256:{digest.hexdigest()}"
    config = try_to_load_from_cache(name, "config.json")  # in the folder of its commit
    return f"{name}@{Path(config).parent.name}" if isinstance(config, str) else name + UNKNOWN


def _content_of(file: Path) -> bytes:
    about = file.stat()
    return _read(file.resolve(), about.st_ino, about.st_size, about.st_mtime_ns)


@cache
def _read(file: Path, *_: int) -> bytes:
    """The SHA-256 of a file; the numbers tell a changed file from the one that was read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
