"""Settings of torch, transformers and the hub's clients, before and after their import."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OFFLINE = "HF_HUB_OFFLINE"
#: Where the hub's clients keep the variable once they are imported.
_READ_BY = ("huggingface_hub.constants", "datasets.config")


def prepare_torch(threads: int | None) -> None:
    """Set what torch reads when it is imported.

    Waiting threads must sleep: on a shared machine spinning ones take seconds from every step.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # It advises the developers of torchao, which transformers imports.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)


def quiet_transformers() -> None:
    """Keep warnings of transformers from the terminal; equipoise.log has them."""
    from transformers.utils import logging as transformers_logging

    for handler in logging.getLogger("transformers").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


@contextmanager
def offline() -> Iterator[None]:
    """Inside, the hub's clients read what is on this machine and fetch nothing."""
    before = os.environ.get(_OFFLINE)
    os.environ[_OFFLINE] = "1"
    imported = {name: vars(sys.modules[name])[_OFFLINE] for name in _READ_BY if name in sys.modules}
    try:
        for name in imported:
            setattr(sys.modules[name], _OFFLINE, True)
        yield
    finally:
        os.environ.pop(_OFFLINE)
        if before is not None:
            os.environ[_OFFLINE] = before
        for name in _READ_BY:
            if name in sys.modules:
                setattr(sys.modules[name], _OFFLINE, imported.get(name, before == "1"))
