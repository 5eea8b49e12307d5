"""Load configurations and tokenizers of untrusted models, without running their code."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError, StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from equipoise.files.errors import EquipoiseError
from equipoise.files.hub import (
    explain,
    model_identity,
    refuse_missing_tokenizer,
    refuse_no_weights,
)
from equipoise.files.untrusted import COPY_AGAIN, check_folder, read_object

#: Layers, experts and labels, of which transformers makes as many.
_MOST_PARTS = 1_000
_PARTS = re.compile(r"(num|n)_.*(layer|expert|label|block)|.*(layers|experts|labels|blocks)")
#: Experts of all layers; the largest models have some 25,000.
_MOST_MODULES = 100_000
#: What attends and what the experts do; a name with a slash is code, which would be downloaded.
_IMPLEMENTATIONS = (
    *("attn_implementation", "_attn_implementation"),
    *("experts_implementation", "_experts_implementation"),
)
#: What of a config.json names code of others.
NAMES_OF_CODE = ("auto_map", *_IMPLEMENTATIONS)


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse a config.json that has too many parts, or names code. Raises `EquipoiseError`.

    `auto_map` alone is harmless: transformers' own class is taken, or there is none.
    """
    for key in _IMPLEMENTATIONS:
        if "/" in str(settings.get(key)):
            raise EquipoiseError(
                "model.foreign-code",
                f"{name}: config.json has {key} {settings[key]!r}, which is code of the hub's",
                "No code of others is run: take the key out of a copy of the model.",
            )
    counts = list(_counts(settings))
    for key, value in counts:
        if value > _MOST_PARTS:
            raise EquipoiseError(
                "model.implausible-size",
                f"{name}: config.json has {key} {value:,}; no model has more than {_MOST_PARTS:,}",
                COPY_AGAIN,
            )
    layers, experts = (
        max((value for key, value in counts if part in key), default=0)
        for part in ("layer", "expert")
    )
    if layers * experts > _MOST_MODULES:
        raise EquipoiseError(
            "model.implausible-size",
            f"{name}: config.json has {layers:,} layers of {experts:,} experts; no model has more "
            f"than {_MOST_MODULES:,} in all",
            COPY_AGAIN,
        )


def _counts(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The keys that say how many layers, experts or labels there are, at any depth."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif type(value) is int and _PARTS.match(key):
            yield key, value


#: What transformers raises for a model that cannot be loaded; `explain` says it to the user.
LOADING_ERRORS = (OSError, ValueError, HFValidationError)
#: And for a configuration of any shape, of which it makes a model without weights.
SETTINGS_ERRORS = (
    *(*LOADING_ERRORS, StrictDataclassError, TypeError, LookupError, ArithmeticError),
    *(AttributeError, AssertionError, ImportError, RuntimeError),
)


@dataclass(frozen=True, slots=True)
class Template:
    """How messages become a prompt: a Jinja text, the tokenizer's own for None, and its words."""

    text: str | None = None
    words: Mapping[str, Any] = field(default_factory=dict)


OWN_TEMPLATE = Template()


def identity_of(name: str, tokenizer_name: str, template: Template = OWN_TEMPLATE) -> str:
    """The `model_identity` of a policy, with tokenizer and template where they are not its own."""
    parts = (model_identity(part) for part in dict.fromkeys((name, tokenizer_name)))
    identity = ", tokenizer ".join(parts)
    if template == OWN_TEMPLATE:
        return identity
    written = json.dumps(asdict(template), sort_keys=True).encode()
    return f"{identity}, template sha256:{hashlib.sha256(written).hexdigest()}"


def load_tokenizer(
    model_name: str, tokenizer_name: str, template: Template = OWN_TEMPLATE
) -> PreTrainedTokenizerBase:
    """A tokenizer with a chat template. Raises `EquipoiseError` with the remedy."""
    if Path(tokenizer_name).is_dir():
        check_folder(Path(tokenizer_name))
    refuse_missing_tokenizer(tokenizer_name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name, trust_remote_code=False)
    except SETTINGS_ERRORS as error:
        raise explain(tokenizer_name, error) from error
    if template.text is not None:
        tokenizer.chat_template = template.text
    if tokenizer.chat_template is None:
        raise EquipoiseError(
            "tokenizer.no-template",
            f"the tokenizer of {model_name} has no chat template",
            "Take an instruction-tuned model, set policy.tokenizer.name to one that has it, or "
            "give a base model one with policy.tokenizer.chat_template=FILE.jinja.",
        )
    if template.words:
        # A method of this one tokenizer, as NeMo-RL does it.
        render = partial(tokenizer.apply_chat_template, **template.words)
        setattr(tokenizer, "apply_chat_template", render)  # noqa: B010
    return tokenizer


def check_model(name: str) -> PreTrainedConfig:
    """Load its config. Raises as `load_config` does, and for a folder without weights."""
    config = load_config(name)
    if Path(name).is_dir():
        refuse_no_weights(Path(name))
    return config


def load_config(name: str) -> PreTrainedConfig:
    """Load a model's config from a folder or the hub; run no code of it.

    Raises `EquipoiseError` for one that cannot be loaded or needs its own code, and for a folder
    that `check_folder` refuses.
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
