"""Which variables of the environment a configuration may take in with `${oc.env:NAME}`.

A run's configuration is resolved and written down, so what it takes in is shared with the run. A
path or a number may be; a word may be a password, and is taken from well-known variables alone.
"""

import os
import re
from typing import Any

from omegaconf.resolvers import oc

from equipoise.config.secrets import has_secret, is_secret_name

_KNOWN = re.compile(
    r"USER|LOGNAME|HOSTNAME|SLURM_(?!JWT)\w+|CUDA_VISIBLE_DEVICES|WANDB_(?:PROJECT|ENTITY|MODE|NAME)"
)
_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,12})?")
_PATH = re.compile(r"~?/[^\n]*|\.{1,2}/[^\n]*|[A-Za-z]:[\\/][^\n]*")


class NotShareableError(ValueError):
    """A variable whose value may be a secret."""


def shareable_variable(name: str, *default: Any) -> Any:
    """The variable's value as OmegaConf's own `oc.env` gives it.

    Raises `NotShareableError` when it may be a secret. The value is in no message.
    """
    value = os.environ.get(name)
    if value is not None and not _is_shareable(name, value):
        raise NotShareableError(
            f"${{oc.env:{name}}} would be written in clear into the run's config.yaml; a key stays "
            "in the environment, under the name that api_key_env gives, and for anything else but "
            "a path or a number write the value itself"
        )
    return oc.env(name, *default)


def _is_shareable(name: str, value: str) -> bool:
    if is_secret_name(name) or has_secret(value):
        return False
    return any(
        form.fullmatch(text) for form, text in ((_KNOWN, name), (_NUMBER, value), (_PATH, value))
    )
