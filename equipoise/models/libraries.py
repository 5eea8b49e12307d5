"""What torch and transformers are told before and after they are imported."""

import logging
import os


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
