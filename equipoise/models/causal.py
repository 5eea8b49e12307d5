"""Loading a causal language model for the local engine."""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from data_prep.model_identity import model_identity
from equipoise.models.hub import explain
from equipoise.models.pretrained import LOADING_ERRORS, identity_of, load_tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer; `identity` says what both are, see `identity_of`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    identity: str


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
    return LoadedModel(model, tokenizer, identity_of(name, tokenizer_name))


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
    return LoadedModel(model, base.tokenizer, model_identity(str(checkpoint)))
