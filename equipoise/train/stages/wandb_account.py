"""The user's account with wandb: whether there is a key, and whether the server takes it."""

import logging
import netrc
import os
from typing import Literal

_HOST = "api.wandb.ai"
_SECONDS = 5


def wandb_mode() -> Literal["online", "offline"] | None:
    """Online exactly when a key is there; None leaves the choice to `WANDB_MODE`."""
    if os.environ.get("WANDB_MODE"):
        return None
    return "online" if os.environ.get("WANDB_API_KEY") or _netrc_has_key() else "offline"


def _netrc_has_key() -> bool:
    try:
        return netrc.netrc().authenticators(_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def login_problem() -> str | None:
    """Why the server does not take the key, None where it does; asks it, and imports wandb."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    logging.getLogger("wandb").setLevel(logging.CRITICAL)
    try:
        wandb.Api(timeout=_SECONDS)
    except (wandb.Error, OSError, ValueError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None
