"""Which engine runs a configuration, and whether it is installed."""

import importlib.util
from pathlib import Path

from equipoise.config.checks import Engine, describe_cluster
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.errors import EquipoiseError


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
    return "nemo_rl" if not for_local and nemo_rl_is_installed() and _has_cuda() else "local"


def refuse_missing_engine(config: Config, engine: Engine) -> None:
    """Raise `EquipoiseError` when NeMo-RL is needed and not installed; not for a dry run."""
    if engine == "nemo_rl" and not nemo_rl_is_installed():
        raise EquipoiseError(
            f"this configuration runs on NeMo-RL and {describe_cluster(config)}, and NeMo-RL is "
            "not installed here (the nemo-rl of PyPI is an empty placeholder)",
            "Start it in the container nvcr.io/nvidia/nemo-rl, look at it with --dry-run, or "
            "take --config nemo_configs/small.yaml (one GPU) or nemo_configs/local.yaml (CPU).",
        )


def nemo_rl_is_installed() -> bool:
    """Whether the real NeMo-RL can be imported; looked up without importing it."""
    spec = importlib.util.find_spec("nemo_rl")
    folders = (spec.submodule_search_locations or []) if spec else []
    return any((Path(folder) / "algorithms" / "grpo.py").is_file() for folder in folders)


def _has_cuda() -> bool:
    import torch  # takes seconds, and is asked only where NeMo-RL is installed

    return torch.cuda.is_available()
