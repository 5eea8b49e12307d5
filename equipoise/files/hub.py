"""The Hugging Face hub, and models by name: on this machine, or what the hub would give.

A model's identity is here too, and the settings of torch, transformers and the hub's clients. It
imports neither torch nor transformers, which takes longer than all its checks.
"""

import hashlib
import logging
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from environments.contract import EncoderSettings
from equipoise.files.disk import CACHE_DIR
from equipoise.files.errors import EquipoiseError, first_line
from equipoise.files.packaged_models import SMOLLM2, located_model, packaged_identity, shipped_file

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
        raise ValueError(
            f"{source} cannot be had: {first_line(error)}. Without a network name a file or folder "
            "that you have brought here"
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


# --- models by name -------------------------------------------------------------------------------
# Checks that a model is on this machine, or that the hub would give it.

#: The error of the hub's HTTP client, which is httpx before huggingface_hub 2 and httpx2 since.
HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
#: Characters of a library's reason.
_MOST_SHOWN = 300
WEIGHTS = frozenset({".safetensors", ".bin"})
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
_NAMES = (
    "policy.model_name takes a folder with a Hugging Face model, a name on the hub (which needs a "
    "network), or one of the words local and smollm2."
)


def explain(name: str, error: Exception) -> EquipoiseError:
    """Turn a library's error about a model into one message with a remedy."""
    refuse_missing_folder(name)
    causes = causes_of(error)
    absent = any(isinstance(cause, RepositoryNotFoundError) for cause in causes)
    gated = any(isinstance(cause, GatedRepoError) for cause in causes)  # a kind of absence
    if gated or ("gated repo" in str(error) and not absent):
        return EquipoiseError(
            "model.gated",
            f"the model {name} is gated",
            f"Accept its licence on huggingface.co/{name}, then put your token as HF_TOKEN "
            "into .env.",
        )
    if absent:
        return EquipoiseError(
            "model.unknown-name",
            f"model {name} is not on the Hugging Face hub, or is private",
            "Check the spelling; for a private model put your token as HF_TOKEN into .env.",
        )
    if "trust_remote_code" in str(error):
        return EquipoiseError(
            "model.custom-code",
            f"the model {name} is code of its own, and no code of others is run",
            "Take a model of a family that transformers has.",
        )
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return EquipoiseError(
            "model.no-config", f"the folder {name} holds no model: it has no config.json", _NAMES
        )
    lines = str(error).split("\n")
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    if not reason or isinstance(error, LookupError | ArithmeticError):  # whose text says too little
        reason = f"{type(error).__name__}: {reason}"
    return EquipoiseError(
        "model.unloadable",
        f"the model {name} cannot be loaded: {' '.join(reason.split())[:_MOST_SHOWN]}",
        _NAMES,
    )


def refuse_missing_folder(name: str) -> None:
    """Raise `EquipoiseError` where a model's name can only be that of a folder, and none is."""
    if is_folder_name(name) and not Path(name).is_dir():
        raise EquipoiseError("model.no-folder", f"there is no folder {name}", _NAMES)


def refuse_missing_model(name: str) -> None:
    """Raise `EquipoiseError` for a folder that is missing, and for what the hub cannot give now."""
    refuse_missing_folder(name)
    if reason := missing_reason(name, "config.json"):
        raise EquipoiseError("model.unavailable", f"the model {reason}", _NAMES)


def refuse_missing_tokenizer(name: str) -> None:
    """Raise `EquipoiseError` for one that the hub cannot give now, or that a folder lacks."""
    reason = missing_reason(name, "tokenizer_config.json", *_TOKENIZERS)
    if Path(name).is_dir() and not any((Path(name) / file).is_file() for file in _TOKENIZERS):
        reason = f"{name} is a folder without one"  # transformers would make one without words
    if reason:
        raise EquipoiseError(
            "tokenizer.unavailable",
            f"the tokenizer {reason}",
            "policy.tokenizer.name takes a folder or a name on the hub, which needs a network.",
        )


def causes_of(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def refuse_no_weights(folder: Path) -> None:
    """Raise `EquipoiseError` where a model's folder has none; NeMo-RL would fail after minutes."""
    if not any(file.suffix in WEIGHTS and file.stat().st_size for file in folder.iterdir()):
        raise EquipoiseError(
            "model.no-weights",
            f"the folder {folder} holds no weights ({', '.join(sorted(WEIGHTS))})",
            "policy.model_name takes a whole model; an adapter is merged into its base first.",
        )


def on_this_machine(name: str, cache: Path | None = None) -> Path | None:
    """The folder of a model, or of its copy in the Hub's cache; None where there is neither."""
    if Path(name).is_dir():
        return Path(name)
    config = None
    if name.count("/") <= 1:
        config = try_to_load_from_cache(name, "config.json", cache_dir=cache)
    return Path(config).parent if isinstance(config, str) else None


# --- packaged -------------------------------------------------------------------------------------
# Models that packages ship, where Equipoise names a model; see packaged_models.py.


def located(name: str, cache_dir: str = CACHE_DIR) -> str:
    """The folder of `smollm2`, made where it is missing; any other name as it is.

    Raises `EquipoiseError` where its package is missing, for a folder that is, and for a name of
    the hub that is not on this machine while the hub cannot be reached.
    """
    if name != SMOLLM2:
        refuse_missing_model(name)
        return name
    quiet_transformers()
    return located_model(name, Path(cache_dir).expanduser())


def refuse_missing_package(name: str) -> None:
    """Raise `EquipoiseError` where a model is named whose package is not installed."""
    if name == SMOLLM2:
        shipped_file(name)


# --- model identity -------------------------------------------------------------------------------
# Identity of a Hugging Face model by its content: its one name in caches and provenance.
#
# A folder keeps its name when the weights in it change, and so does a model of the hub.


#: In the identity of a model of the hub that was never loaded on this machine.
UNKNOWN = "@unknown"
#: Weights, configuration, chat template, and tokenizers that are not JSON.
_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken"})
_WORDS = frozenset({"vocab.txt", "merges.txt"})
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
            if file.is_file() and (file.suffix in _SUFFIXES or file.name in _WORDS)
        ]
        with ThreadPoolExecutor(_READERS) as pool:
            contents = list(pool.map(_content_of, files))
        digest = hashlib.sha256()
        for file, content in zip(files, contents, strict=True):
            digest.update(file.relative_to(folder).as_posix().encode() + content)
        return f"sha256:{digest.hexdigest()}"
    config = try_to_load_from_cache(name, "config.json")  # in the folder of its commit
    return f"{name}@{Path(config).parent.name}" if isinstance(config, str) else name + UNKNOWN


def encoder_identity(settings: EncoderSettings) -> str:
    """Identify an encoder for an index: its models and pooling."""
    models = [model_identity(name) for name in (settings.query_model, settings.passage_model)]
    return f"{' | '.join(models)}, {'first token' if settings.is_pair else 'mean, normalised'}"


def _content_of(file: Path) -> bytes:
    about = file.stat()
    return _read(file.resolve(), about.st_ino, about.st_size, about.st_mtime_ns)


@cache
def _read(file: Path, *_: int) -> bytes:
    """The SHA-256 of a file; the numbers tell a changed file from the one that was read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


# --- Settings of libraries ------------------------------------------------------------------------

_OFFLINE = "HF_HUB_OFFLINE"
#: Where the hub's clients keep the variable once they are imported.
_READ_BY = ("huggingface_hub.constants", "datasets.config")


def prepare_torch(threads: int | None) -> None:
    """Set what torch reads when it is imported.

    Waiting threads must sleep: on a shared machine spinning ones take seconds from every step.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # It advises the developers of torchao, which transformers imports.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)


def quiet_transformers() -> None:
    """Keep warnings of transformers from the terminal; equipoise.log has them."""
    from transformers.utils import logging as transformers_logging

    for handler in logging.getLogger("transformers").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


@contextmanager
def offline() -> Iterator[None]:
    """Let the hub's clients read what is on this machine alone while the block runs."""
    before = os.environ.get(_OFFLINE)
    os.environ[_OFFLINE] = "1"
    imported = {name: vars(sys.modules[name])[_OFFLINE] for name in _READ_BY if name in sys.modules}
    try:
        for name in imported:
            setattr(sys.modules[name], _OFFLINE, True)
        yield
    finally:
        os.environ.pop(_OFFLINE)
        if before is not None:
            os.environ[_OFFLINE] = before
        for name in _READ_BY:
            if name in sys.modules:
                setattr(sys.modules[name], _OFFLINE, imported.get(name, before == "1"))
