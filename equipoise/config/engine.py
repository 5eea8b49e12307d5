"""Which engine runs a configuration, and whether it is there."""

import os

from equipoise.config.checks import Engine, describe_cluster
from equipoise.config.machine import smaller
from equipoise.config.memory import GB, least_local_bytes
from equipoise.config.models import model_shape
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.errors import EquipoiseError
from equipoise.installation.environment import is_launched
from equipoise.installation.nemo_rl import find_installation, is_installed

_TAKE_CPU = (
    "Take --device cpu, or see whether nvidia-smi shows a GPU and this torch was built for it."
)


def choose_engine(config: Config) -> Engine:
    """The engine that is asked for; for `auto` the one that the configuration fits.

    Several GPUs need NeMo-RL. One GPU takes it where it is installed. The local model and the CPU
    are for the local engine.
    """
    engine, cluster = config.equipoise.engine, config.cluster
    if engine != "auto":
        return engine
    if is_launched():  # by a process that chose it
        return "nemo_rl"
    if cluster.gpus_per_node * cluster.num_nodes > 1:
        return "nemo_rl"
    for_local = config.policy.model_name == LOCAL_MODEL or config.equipoise.device == "cpu"
    return "nemo_rl" if not for_local and is_installed() and _count_gpus() else "local"


def refuse_missing_engine(config: Config, engine: Engine, *, rehearse: bool = False) -> None:
    """Raise `EquipoiseError` where NeMo-RL or a GPU is asked for and missing."""
    if engine != "nemo_rl":
        refuse_missing_gpu(config)
        refuse_large_model(config)
        return
    machines = "a CPU" if rehearse else describe_cluster(config)
    try:
        find_installation()
    except EquipoiseError as error:
        needs = f"this configuration runs on NeMo-RL and {machines}"
        remedy = error.remedy if rehearse else f"{error.remedy} {smaller(config)}"
        raise EquipoiseError(f"{needs}, and {error.message}", remedy) from None


def refuse_missing_gpu(config: Config) -> None:
    """Raise `EquipoiseError` where a GPU is asked for, and torch finds none."""
    if config.equipoise.device == "cuda" and not _count_gpus():
        raise EquipoiseError("equipoise.device is cuda, and torch finds no GPU", _TAKE_CPU)


def refuse_large_model(config: Config) -> None:
    """Raise `EquipoiseError` for a model of known shape that this machine cannot hold."""
    if model_shape(config.policy.model_name) is None:
        return
    gpu = config.equipoise.device != "cpu" and _count_gpus() > 0
    refuse_model_above(config, _gpu_bytes() if gpu else ram_bytes(), gpu=gpu)


def refuse_model_above(config: Config, has: int, *, gpu: bool) -> None:
    """The same for a GPU, or a machine without one, that has so many bytes of memory."""
    shape = model_shape(config.policy.model_name)
    if shape and (needs := least_local_bytes(config, shape, gpu=gpu)) > has:
        raise EquipoiseError(
            f"to train {config.policy.model_name} here takes at least {needs / GB:,.0f} GB for its "
            f"weights, gradients and optimizer, and {'the GPU' if gpu else 'this machine'} has "
            f"{has / GB:,.0f} GB",
            f"Take a smaller model, or a LoRA with --lora-rank. {smaller(config)}",
        )


def ram_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu_bytes() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


def _count_gpus() -> int:
    import torch  # takes seconds, and is asked only where it decides something

    return torch.cuda.device_count()
