"""Detection and removal of keys and passwords.

Names and forms decide: a secret of no known form under an innocent name is not found. Every pattern
takes linear time, because a log may hold any text.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

#: The end of a name such as api_key, X-Api-Key, hfToken or DB_PASSWORD. A bare token is a word of a
#: vocabulary in most names (eos_token).
_NAME = re.compile(
    r"(?:^|_)(?:(?:api|access|private|secret|account|signing)_?keys?|secrets?|passwords?|passwd|pass"
    r"|passphrase|credentials?|authorization|auth|cookie"
    r"|(?:access|api|auth|bearer|github|hf|hub|id|refresh|secret|session|wandb)_?tokens?)$"
    r"|^token$"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FORM = re.compile(
    "|".join(
        (
            r"(?<![\w-])(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}",
            r"(?<![\w-])hf_[A-Za-z0-9]{16,}",
            r"(?<![\w-])nvapi-[A-Za-z0-9_-]{16,}",
            r"(?<![\w-])(?:gh[opsu]|glpat|github_pat)[-_][A-Za-z0-9_-]{16,}",
            r"(?<![\w-])xox[abeprs]-[A-Za-z0-9-]{10,}",
            r"(?<![\w-])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])",
            r"(?<![\w-])AIza[A-Za-z0-9_-]{30,}",
            r"(?<![\w-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+",
            r"(?i:(?<=bearer )[A-Za-z0-9._~+/=-]{12,})",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
            r"(?<=://)[^/\s@:'\"]*:[^/\s@'\"]*(?=@)",  # user:password of an address
            r"(?:(?<=https://)|(?<=http://))[^/\s@'\"]+(?=@)",
            r"(?i:[?&](?:api_?key|key|(?:access_)?token|password|secret|sig)=)[^&\s'\"]+",
        )
    )
)
#: A shorter value is as likely a common word, whose blotting would hide what is not a secret.
_SHORTEST = 8


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret, unlike one of api_key_env or max_new_tokens."""
    return bool(_NAME.search(_HUMP.sub("_", name).replace("-", "_").lower()))


def has_secret(text: str) -> bool:
    """Whether a part of the text has the form of a key, or is an address with a password."""
    return bool(_FORM.search(text))


def masked(text: str) -> str:
    return _FORM.sub(MASK, text)


def redacted(text: str) -> str:
    """Mask what the environment holds as a secret, and what has the form of one."""
    named = [value for name, value in os.environ.items() if is_secret_name(name)]
    # One that contains another comes first.
    for secret in sorted(named, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
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
