"""Models and tokenizers of the Hugging Face hub, and why one cannot be had."""

from pathlib import Path

from huggingface_hub.errors import HFValidationError, StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from data_prep.model_identity import model_identity
from equipoise.config.schema import PolicyConfig
from equipoise.errors import EquipoiseError
from equipoise.models.foreign import check_folder, check_settings, read_object
from equipoise.models.hub import explain, refuse_missing_tokenizer, refuse_no_weights

#: What transformers raises for a model that cannot be loaded; `explain` says it to the user.
LOADING_ERRORS = (OSError, ValueError, HFValidationError)
#: And for a configuration of any shape, of which it makes a model without weights.
SETTINGS_ERRORS = (
    *(*LOADING_ERRORS, StrictDataclassError, TypeError, LookupError, ArithmeticError),
    *(AttributeError, AssertionError, ImportError, RuntimeError),
)


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
    if Path(tokenizer_name).is_dir():
        check_folder(Path(tokenizer_name))
    refuse_missing_tokenizer(tokenizer_name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name, trust_remote_code=False)
    except SETTINGS_ERRORS as error:
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


def check_model(name: str) -> PreTrainedConfig:
    """What the model is. Raises as `load_config` does, and for a folder without weights."""
    config = load_config(name)
    if Path(name).is_dir():
        refuse_no_weights(Path(name))
    return config


def load_config(name: str) -> PreTrainedConfig:
    """What the model of a folder or of the hub is; no code of it is run.

    Raises `EquipoiseError` for one that cannot be had or is code of others, and for a folder that
    `check_folder` refuses.
    """
    path = Path(name) / "config.json"
    if path.parent.is_dir():
        check_folder(path.parent)
    if path.is_file():
        check_settings(name, read_object(path))
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except SETTINGS_ERRORS as error:
        raise explain(name, error) from error
    check_settings(name, config.to_dict() | {"attn_implementation": config._attn_implementation})
    return config
