"""Which engine runs a configuration, and whether it is there."""

from equipoise.config.checks import Engine, describe_cluster
from equipoise.config.machine import SMALLER
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.engines.nemo_rl.environment import is_launched
from equipoise.engines.nemo_rl.installation import find_installation, is_installed
from equipoise.errors import EquipoiseError

_TAKE_CPU = (
    "Take --device cpu, or see whether nvidia-smi shows a GPU and this torch was built for it."
)


def choose_engine(config: Config) -> Engine:
    """The engine that is asked for; for `auto` the one that the configuration fits.

    Several GPUs need NeMo-RL. One GPU takes it where it is installed. The local model and the CPU
    are for the local engine.
    """
    asked, cluster = config.equipoise.engine, config.cluster
    if asked != "auto":
        return asked
    if is_launched():  # by a process that chose it
        return "nemo_rl"
    if cluster.gpus_per_node * cluster.num_nodes > 1:
        return "nemo_rl"
    for_local = config.policy.model_name == LOCAL_MODEL or config.equipoise.device == "cpu"
    return "nemo_rl" if not for_local and is_installed() and _count_gpus() else "local"


def refuse_missing_engine(config: Config, engine: Engine, *, rehearse: bool = False) -> None:
    """Raise `EquipoiseError` where NeMo-RL or a GPU is asked for and missing."""
    if engine != "nemo_rl":
        if config.equipoise.device == "cuda" and not _count_gpus():
            raise EquipoiseError("equipoise.device is cuda, and torch finds no GPU", _TAKE_CPU)
        return
    machines = "a CPU" if rehearse else describe_cluster(config)
    try:
        find_installation()
    except EquipoiseError as error:
        needs = f"this configuration runs on NeMo-RL and {machines}"
        remedy = f"{error.remedy} {SMALLER}"
        raise EquipoiseError(f"{needs}, and {error.message}", remedy) from None


def _count_gpus() -> int:
    import torch  # takes seconds, and is asked only where it decides something

    return torch.cuda.device_count()
