"""The key of an endpoint: from the environment into one header, and nowhere else."""

import os
from dataclasses import dataclass, field

from environments.chat.errors import ChatSetupError

_SHOWN_CHARACTERS = 300
#: A shorter key may be a word, such as the "none" for a server that needs no key.
_SECRET_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that no representation shows; empty where the endpoint needs none."""

    _value: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that authorise a request."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def appears_in(self, text: str) -> bool:
        """Whether an answer holds the key, which must then reach no cache and no report."""
        return len(self._value) >= _SECRET_CHARACTERS and self._value in text

    def clip(self, text: str) -> str:
        """A short line of a server's words for an error, with the key blotted out."""
        safe_text = text.replace(self._value, "***") if self._value else text
        line = " ".join(safe_text.split())
        return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."


def read_key(variable: str | None) -> ApiKey:
    """The key in an environment variable. Raises `ChatSetupError` where there is none."""
    if variable is None:
        return ApiKey("")
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ChatSetupError(f"the environment variable {variable} holds no key")
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise ChatSetupError(f"the environment variable {variable} holds no key but other text")
    return ApiKey(value)
