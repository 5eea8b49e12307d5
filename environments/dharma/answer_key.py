"""The answer key: what a reply to an invented prompt should hold, which its metadata say.

No message holds it, so the policy that is trained never sees it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from environments.base import Failure

#: The key of a prompt's metadata under which it is.
ANSWER_KEY = "answer_key"


class AnswerKey(BaseModel, extra="forbid", frozen=True, strict=True):
    """The key to one prompt's right reply; None where there is nothing of the kind."""

    advice: str | None = None  # what an expert says of the health matter
    declines: str | None = None  # the field outside healthcare that is to be declined
    outside: str | None = None  # what an assistant that wanders says of that field


def read_answer_key(metadata: Mapping[str, Any]) -> AnswerKey | Failure | None:
    """The key that a prompt brings, None where it brings none."""
    if ANSWER_KEY not in metadata:
        return None
    try:
        return AnswerKey.model_validate(metadata[ANSWER_KEY])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, (ANSWER_KEY, *first["loc"])))
        return Failure("verifier_error", f"the prompt's {location}: {first['msg']}")
