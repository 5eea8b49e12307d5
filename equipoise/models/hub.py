"""Checks that a model is on this machine, or that the Hugging Face hub would give it.

With them lie the settings of torch, transformers and the hub's clients. It imports neither torch
nor transformers, which takes longer than all these checks.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from equipoise.config.schema import CACHE_DIR
from equipoise.files.errors import EquipoiseError
from equipoise.files.hub import is_folder_name, missing_reason
from equipoise.files.packaged_models import SMOLLM2, located_model, shipped_file

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
# Models that packages ship, where Equipoise names a model; see equipoise/files/packaged_models.py.


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
