"""Removal of secrets from what leaves a run's terminal for a log or a tracker."""

import os
from collections.abc import Mapping
from typing import Any

from equipoise.config.secrets import MASK, is_secret_name, masked

#: A shorter value is as likely a common word, whose blotting would hide what is no secret.
_SHORTEST = 8


def redacted(text: str) -> str:
    """The text without what the environment holds as a secret, and what has the form of one."""
    for secret in _secrets():
        text = text.replace(secret, MASK)
    return masked(text)


def redacted_tree(value: Any, name: str = "") -> Any:
    """Redact a JSON value; what is under a name such as `api_key` is hidden whole."""
    if isinstance(value, Mapping):
        return {key: redacted_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_tree(item, name) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if is_secret_name(name) else redacted(value)


def _secrets() -> list[str]:
    """The values of variables such as WANDB_API_KEY; one that contains another comes first."""
    named = (value for name, value in os.environ.items() if is_secret_name(name))
    return sorted((value for value in named if len(value) >= _SHORTEST), key=len, reverse=True)
