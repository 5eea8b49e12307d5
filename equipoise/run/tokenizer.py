"""The tokenizer of a run's policy and its chat template, as the configuration names them."""

from pathlib import Path

from equipoise.config.schema import PolicyConfig, TokenizerConfig
from equipoise.files.errors import UsageError
from equipoise.files.pretrained import Template

#: What NeMo-RL takes for `chat_template: null`.
_CONTENTS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def template_of(tokenizer: TokenizerConfig) -> Template:
    """The chat template that `policy.tokenizer` sets, as NeMo-RL reads it: a file or a text.

    Raises `UsageError` for a file that cannot be read.
    """
    words = tokenizer.chat_template_kwargs or {}
    if not tokenizer.brings_template:
        return Template(words=words)
    text = _CONTENTS if tokenizer.chat_template is None else tokenizer.chat_template
    if text.endswith(".jinja"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(
                "tokenizer.unreadable-template",
                f"policy.tokenizer.chat_template: {text} cannot be read: {error}",
                "Name a file with a Jinja template, or leave the key out for the model's own.",
            ) from error
    return Template(text, words)


def tokenizer_of(policy: PolicyConfig, model_name: str) -> str:
    """Return a policy's tokenizer: that of the model `model_name`, unless another one is named."""
    named = policy.tokenizer.name
    return model_name if named == policy.model_name else named
