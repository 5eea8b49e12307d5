"""Models and tokenizers of the Hugging Face hub, and why one cannot be had."""

from pathlib import Path

from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from data_prep.model_identity import model_identity
from equipoise.config.schema import PolicyConfig
from equipoise.errors import EquipoiseError

_WEIGHTS = frozenset({".safetensors", ".bin"})
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
    if Path(name).is_dir() and not any(
        file.suffix in _WEIGHTS and file.stat().st_size for file in Path(name).iterdir()
    ):
        raise EquipoiseError(
            f"the folder {name} holds no weights ({', '.join(sorted(_WEIGHTS))})",
            "policy.model_name takes a whole model; an adapter is merged into its base first.",
        )


def explain(name: str, error: Exception) -> EquipoiseError:
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
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
