"""Models and tokenizers of the Hugging Face hub, and why one cannot be had."""

from pathlib import Path

from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from data_prep.model_identity import model_identity
from equipoise.config.schema import PolicyConfig
from equipoise.errors import EquipoiseError
from equipoise.models.hub import explain, refuse_no_weights

#: What transformers raises for a model that cannot be loaded; `explain` says it to the user.
LOADING_ERRORS = (OSError, ValueError, HFValidationError)


def tokenizer_of(policy: PolicyConfig, model_name: str) -> str:
    """Where a policy's tokenizer is: with the model `model_name`, unless another place is named."""
    named = policy.tokenizer.name
    return model_name if named == policy.model_name else named


def identity_of(name: str, tokenizer_name: str) -> str:
    """The `model_identity` of a policy, with that of its tokenizer where that is from elsewhere."""
    return ", tokenizer ".join(
        model_identity(part) for part in dict.fromkeys((name, tokenizer_name))
    )


def load_tokenizer(model_name: str, tokenizer_name: str) -> PreTrainedTokenizerBase:
    """A tokenizer with a chat template. Raises `EquipoiseError` with the remedy."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
    except LOADING_ERRORS as error:
        raise explain(tokenizer_name, error) from error
    if tokenizer.chat_template is None:
        raise EquipoiseError(
            f"the tokenizer of {model_name} has no chat template",
            "Take an instruction-tuned model, or set policy.tokenizer.name to one that has it.",
        )
    return tokenizer


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What a tokenizer reads as one special token wherever it is in a text.

    A single character is left out: it is a sign that some model pads with, and everybody writes.
    """
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(token for token in added | set(tokenizer.all_special_tokens) if len(token) > 1)


def check_model(name: str) -> None:
    """Raise `EquipoiseError` where there is no model, without loading its weights."""
    try:
        AutoConfig.from_pretrained(name)
    except LOADING_ERRORS as error:
        raise explain(name, error) from error
    if Path(name).is_dir():
        refuse_no_weights(Path(name))
