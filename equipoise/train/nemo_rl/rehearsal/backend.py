"""NeMo-RL's own cluster, worker groups, policy and generation, with workers that need no GPU.

Or with its own workers, on GPUs, see `use_this_python`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from nemo_rl.distributed import virtual_cluster
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.models.generation.vllm import vllm_generation
from nemo_rl.models.policy import lm_policy
from nemo_rl.models.policy.utils import resolve_policy_worker_cls

from equipoise.files.errors import EquipoiseError
from equipoise.train.nemo_rl.rehearsal.comparison import Rollouts, write_rollouts
from equipoise.train.nemo_rl.rehearsal.ray_cluster import start_ray

_REPLACED = "nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2"
_OURS = "equipoise.train.nemo_rl.rehearsal"
_POLICY = f"{_OURS}.policy_worker.CpuPolicyWorker"
_GENERATION = f"{_OURS}.generation_worker.CpuGenerationWorker"
#: As many of the last rollouts are kept.
_ROLLOUTS = 64


@contextmanager
def cpu_workers(gpus: int) -> Iterator[None]:
    """Have NeMo-RL start a Ray that believes in `gpus` GPUs, with workers that run on the CPU.

    A Ray that RAY_ADDRESS names is joined as NeMo-RL does.
    """
    joins = "RAY_ADDRESS" in os.environ
    reach_ray = virtual_cluster.init_ray if joins else partial(start_ray, gpus)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # all workers would get it, and Ray count by it
    system = virtual_cluster.PY_EXECUTABLES.SYSTEM
    ACTOR_ENVIRONMENT_REGISTRY.update(dict.fromkeys((_POLICY, _GENERATION), system))
    with (
        replaced(lm_policy, "resolve_policy_worker_cls", _policy_worker_of),
        replaced(vllm_generation, "resolve_generation_worker_cls", _generation_worker_of),
        replaced(virtual_cluster, "init_ray", reach_ray),
    ):
        yield


def use_this_python() -> None:
    """Have NeMo-RL's own workers run in this Python, on GPUs.

    It has to have what they import, for NeMo-RL would make an environment for each kind.
    """
    system = virtual_cluster.PY_EXECUTABLES.SYSTEM
    ACTOR_ENVIRONMENT_REGISTRY.update(dict.fromkeys(ACTOR_ENVIRONMENT_REGISTRY, system))


@contextmanager
def replaced(module: ModuleType, name: str, replacement: Any) -> Iterator[None]:
    """Replace `module.name` while the block runs."""
    original = getattr(module, name)
    setattr(module, name, replacement)
    try:
        yield
    finally:
        setattr(module, name, original)


def _policy_worker_of(name: str, config: Any) -> str:
    """Raise `EquipoiseError` for a worker that a CPU has no place for."""
    worker = resolve_policy_worker_cls(name, config)
    if worker != _REPLACED:
        raise _no_worker(worker.rpartition(".")[2])
    return _POLICY


def _generation_worker_of(_: str, config: Any) -> str:
    """Raise `EquipoiseError` for asynchronous generation."""
    if config["vllm_cfg"]["async_engine"]:
        raise _no_worker("vLLM's asynchronous engine")
    return _GENERATION


def _no_worker(name: str) -> EquipoiseError:
    return EquipoiseError(
        "rehearsal.no-such-worker",
        f"no rehearsal on a CPU can start {name}",
        "Leave the training backend, policy.quant_cfg and how vLLM generates to the rehearsal, or "
        "take GPUs.",
    )


def keep_rollouts(path: Path, policy: Any, output: Any) -> None:
    """Write the last rollouts as both sides see them; there are none where parts were kept."""
    if output is not None:
        write_rollouts(path, _seen_by_both(policy, output))


def _seen_by_both(policy: Any, output: Any) -> Rollouts:
    """Rollouts of the generation with the logprobs that the training workers compute.

    These take whole micro batches: the first rollouts come again to fill the last one.
    """
    unit = policy.data_parallel_size * policy.cfg["logprob_batch_size"]
    rows = torch.arange(-(-_ROLLOUTS // unit) * unit) % len(output["output_ids"])
    ids, lengths = output["output_ids"][rows], output["unpadded_sequence_lengths"][rows]
    policy.prepare_for_lp_inference()
    training = policy.get_logprobs(BatchedDataDict(input_ids=ids, input_lengths=lengths))
    return Rollouts(
        ids,
        lengths - output["generation_lengths"][rows],
        lengths,
        {"training": training["logprobs"], "generation": output["logprobs"][rows]},
    )
