"""Loading a causal language model for the local engine."""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from data_prep.files import hash_folder
from equipoise.models.pretrained import LOADING_ERRORS, explain, load_tokenizer


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
    tokenizer = load_tokenizer(name, tokenizer_name)
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except LOADING_ERRORS as error:
        raise explain(name, error) from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(device).eval()
    return LoadedModel(model, tokenizer, fingerprint(name, model))


def fingerprint(name: str, model: PreTrainedModel) -> str:
    """The hub's commit, or the hash of a local folder's weights and configuration."""
    if Path(name).is_dir():
        return f"sha256:{hash_folder(Path(name))}"
    return f"{name}@{getattr(model.config, '_commit_hash', None) or 'unknown'}"


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
