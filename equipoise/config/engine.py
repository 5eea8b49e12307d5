"""Which engine runs a configuration, and whether this machine can."""

from equipoise.config.checks import Engine, describe_cluster
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.engines.nemo_rl.installation import find_installation, is_installed
from equipoise.errors import EquipoiseError

_SMALLER = (
    "Look at it with --dry-run, try it with --rehearse, or take --config "
    "nemo_configs/small.yaml (one GPU) or nemo_configs/local.yaml (CPU)."
)


def choose_engine(config: Config) -> Engine:
    """The engine that is asked for; for `auto` the one that the configuration fits.

    Several GPUs need NeMo-RL. One GPU takes it where it is installed. The local model and the CPU
    are for the local engine.
    """
    asked, cluster = config.equipoise.engine, config.cluster
    if asked != "auto":
        return asked
    if cluster.gpus_per_node * cluster.num_nodes > 1:
        return "nemo_rl"
    for_local = config.policy.model_name == LOCAL_MODEL or config.equipoise.device == "cpu"
    return "nemo_rl" if not for_local and is_installed() and _count_gpus() else "local"


def refuse_missing_engine(config: Config, engine: Engine, *, rehearse: bool = False) -> None:
    """Raise `EquipoiseError` where NeMo-RL or its GPUs are needed and missing; not for a dry run.

    A rehearsal needs no GPU. Of several nodes only this one can be looked at before Ray runs.
    """
    if engine != "nemo_rl":
        return
    machines = "a CPU" if rehearse else describe_cluster(config)
    needs = f"this configuration runs on NeMo-RL and {machines}"
    try:
        find_installation()
    except EquipoiseError as error:
        remedy = f"{error.remedy} {_SMALLER}"
        raise EquipoiseError(f"{needs}, and {error.message}", remedy) from None
    here = config.cluster.gpus_per_node if rehearse else _count_gpus()
    if here < config.cluster.gpus_per_node:
        raise EquipoiseError(f"{needs}, and this machine has {here}", _SMALLER)


def _count_gpus() -> int:
    import torch  # takes seconds, and is asked only where NeMo-RL is installed

    return torch.cuda.device_count()
