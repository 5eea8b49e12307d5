"""Addresses of servers and paths in a configuration, which is kept with the run."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

#: Said from the folder in which a run is started, found by a worker in any other.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


def plain_url(url: str, instead: str) -> str:
    """The address without a slash at its end.

    Raises `ValueError` for what is not an http or https address, and for one with a user, a
    password or a query: `instead` says what to do.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # no label is empty or too long
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(
            "not an http or https address: it must start with http:// or https:// and name a host"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"takes no user, password or query{instead}")
    return url.rstrip("/")
