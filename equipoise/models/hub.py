"""What of a model is on this machine, and whether the Hugging Face hub would give it.

transformers is not imported: it takes longer than all that is looked at here.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from equipoise.errors import EquipoiseError

WEIGHTS = frozenset({".safetensors", ".bin"})
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def explain(name: str, error: Exception) -> EquipoiseError:
    """One clear message for the ways in which a model cannot be had."""
    causes = _causes(error)
    absent = any(isinstance(cause, RepositoryNotFoundError) for cause in causes)
    gated = any(isinstance(cause, GatedRepoError) for cause in causes)  # a kind of absence
    if gated or ("gated repo" in str(error) and not absent):
        return EquipoiseError(
            f"the model {name} is gated",
            f"Accept its licence on huggingface.co/{name}, then put your token as HF_TOKEN "
            "into .env.",
        )
    if absent:
        return EquipoiseError(
            f"there is no model {name} on the Hugging Face hub, or it is private",
            "Check the spelling; for a private model put your token as HF_TOKEN into .env.",
        )
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return EquipoiseError(
        f"the model {name} cannot be loaded: {first_line}",
        "policy.model_name takes a folder with a Hugging Face model, a name on the hub (which "
        "needs a network), or one of the words local and smollm2.",
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def refuse_no_weights(folder: Path) -> None:
    """Raise `EquipoiseError` where a model's folder has none; NeMo-RL would fail after minutes."""
    if not _holds_weights(folder):
        raise EquipoiseError(
            f"the folder {folder} holds no weights ({', '.join(sorted(WEIGHTS))})",
            "policy.model_name takes a whole model; an adapter is merged into its base first.",
        )


def _holds_weights(folder: Path) -> bool:
    return any(file.suffix in WEIGHTS and file.stat().st_size for file in folder.iterdir())


def on_this_machine(name: str) -> Path | None:
    """The folder of a model, or of its copy in the Hub's cache; None where there is neither."""
    if Path(name).is_dir():
        return Path(name)
    config = try_to_load_from_cache(name, "config.json") if name.count("/") <= 1 else None
    return Path(config).parent if isinstance(config, str) else None


def in_cache(name: str) -> bool:
    """Whether the Hub's cache has the weights of a model."""
    folder = on_this_machine(name)
    return folder is not None and _holds_weights(folder)


def model_problems(folder: Path) -> Iterator[str]:
    """What a model's folder lacks for a policy; weights apart, see `refuse_no_weights`."""
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        yield "it has no config.json"
    except ValueError:
        yield "its config.json is no JSON"


def tokenizer_problems(folder: Path) -> Iterator[str]:
    """What a folder lacks of a tokenizer that writes chats."""
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        yield "it has no tokenizer"
    elif not _has_chat_template(folder):
        yield "its tokenizer has no chat template"


def _has_chat_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))
