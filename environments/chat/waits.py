"""When to try again."""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_LONGEST_BACKOFF = 30.0


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3); None where it says nothing.

    Either a number of seconds or an HTTP date; a date that has passed asks for none.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)  # infinity for more digits than it holds, which is never, too
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # no date, and a zone further off than any on earth
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def backoff_seconds(first: float, failures: int) -> float:
    """A random wait around `first`, doubled with each failure after the first, 30 s at most."""
    longest = min(2 * first * 2 ** min(failures - 1, 16), _LONGEST_BACKOFF)
    return random.uniform(0, longest)  # noqa: S311 - nothing but a wait depends on it
