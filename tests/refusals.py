"""Refusals: tests name the code, and the values that the message must hold."""

import re
from contextlib import contextmanager

import pytest

from environments.base import CodedError


@contextmanager
def refusal(expected, *values):
    """Expect the refusal of a code, `code` or `code | value`, whose message names the values."""
    with pytest.raises(CodedError) as caught:
        yield caught
    message = str(caught.value)
    code, *named = expected.split(" | ")
    assert caught.value.code == code, f"not {code}, but {caught.value.code}: {message}"
    absent = [value for value in (*named, *values) if str(value) not in message]
    assert not absent, f"{absent} is not in: {message}"


def holds(line, expected):
    """Whether a problem has the code and, in this order, the values: `code | value | value`."""
    code, *values = expected.split(" | ")
    words = [rf"(?<!\w){re.escape(value)}(?!\w)" for value in values]
    return line.endswith(f" [{code}]") and bool(re.search(".*".join(words), line, re.DOTALL))
