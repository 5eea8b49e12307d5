"""Loading a causal language model for the local engine."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from equipoise.errors import EquipoiseError

_MODEL_FILES = {".safetensors", ".bin", ".json", ".jinja"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer; `fingerprint` names its weights for caches and provenance."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str


def load_model(
    name: str, tokenizer_name: str, *, dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    """Load from a folder or the Hugging Face hub. Raises `EquipoiseError` with the remedy."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except (OSError, ValueError, HFValidationError) as error:
        raise _explain(name, error) from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        raise EquipoiseError(
            f"the tokenizer of {name} has no chat template",
            "Take an instruction-tuned model, or set policy.tokenizer.name to one that has it.",
        )
    model.to(device).eval()
    return LoadedModel(model, tokenizer, fingerprint(name, model))


def fingerprint(name: str, model: PreTrainedModel) -> str:
    """The hub's commit, or the hash of a local folder's weights and configuration."""
    if Path(name).is_dir():
        return f"sha256:{hash_folder(Path(name))}"
    return f"{name}@{getattr(model.config, '_commit_hash', None) or 'unknown'}"


def hash_folder(folder: Path) -> str:
    """Hash of the weights, configuration and tokenizer in a model folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in _MODEL_FILES:
            digest.update(file.relative_to(folder).as_posix().encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _explain(name: str, error: Exception) -> EquipoiseError:
    """One clear message for the ways in which a model cannot be had."""
    causes = _causes(error)
    if any(isinstance(cause, GatedRepoError) for cause in causes) or "gated repo" in str(error):
        return EquipoiseError(
            f"the model {name} is gated",
            f"Accept its licence on huggingface.co/{name}, then put your token as HF_TOKEN "
            "into .env.",
        )
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return EquipoiseError(
            f"there is no model {name} on the Hugging Face hub, or it is private",
            "Check the spelling; for a private model put your token as HF_TOKEN into .env.",
        )
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return EquipoiseError(
        f"the model {name} cannot be loaded: {first_line}",
        "policy.model_name takes a folder with a Hugging Face model, a name on the hub (which "
        "needs a network), or the word local.",
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def load_trained(base: LoadedModel, checkpoint: Path, device: torch.device) -> LoadedModel:
    """The trained model of a final checkpoint: a whole model, or `base` with the adapter.

    The adapter is put on a fresh copy of the base, so that nothing of the training run is left.
    """
    if (checkpoint / "adapter_config.json").exists():
        source = base.model.get_base_model() if isinstance(base.model, PeftModel) else base.model
        fresh = AutoModelForCausalLM.from_pretrained(source.name_or_path, dtype=source.dtype)
        model = PeftModel.from_pretrained(fresh, str(checkpoint))
    else:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=base.model.dtype)
    model.to(device).eval()
    return LoadedModel(model, base.tokenizer, f"sha256:{hash_folder(checkpoint)}")
