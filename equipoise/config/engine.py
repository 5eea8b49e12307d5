"""Which engine runs a configuration."""

from equipoise.config.checks import Engine
from equipoise.config.nemo_rl.environment import is_launched
from equipoise.config.nemo_rl.installation import is_installed
from equipoise.config.schema import LOCAL_MODEL, Config


def choose_engine(config: Config) -> Engine:
    """The engine that is asked for; for `auto` the one that the configuration fits.

    Several GPUs need NeMo-RL. One GPU takes it where it is installed. The local model and the CPU
    are for the local engine.
    """
    engine = config.equipoise.engine
    if engine != "auto":
        return engine
    if is_launched():  # by a process that chose it
        return "nemo_rl"
    if config.cluster.gpus > 1:
        return "nemo_rl"
    for_local = config.policy.model_name == LOCAL_MODEL or config.equipoise.device == "cpu"
    return "nemo_rl" if not for_local and is_installed() and count_gpus() else "local"


def count_gpus() -> int:
    """The GPUs that torch sees."""
    import torch  # takes seconds, and is asked only where it decides something

    return torch.cuda.device_count()
