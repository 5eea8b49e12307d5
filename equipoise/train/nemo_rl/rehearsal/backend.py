"""NeMo-RL's own cluster, worker groups, policy and generation, with workers that need no GPU.

Or with its own workers, on GPUs, see `gpu_workers`.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from nemo_rl.algorithms import grpo
from nemo_rl.distributed import virtual_cluster
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.models.generation.vllm import vllm_generation
from nemo_rl.models.policy import lm_policy
from nemo_rl.models.policy.utils import resolve_policy_worker_cls

from equipoise.errors import EquipoiseError
from equipoise.train.nemo_rl.rehearsal.comparison import Rollouts, write_rollouts
from equipoise.train.nemo_rl.rehearsal.ray_cluster import start_ray
from equipoise.train.nemo_rl.together import replaced

_REPLACED = "nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2"
_OURS = "equipoise.train.nemo_rl.rehearsal"
_POLICY = f"{_OURS}.policy_worker.CpuPolicyWorker"
_GENERATION = f"{_OURS}.generation_worker.CpuGenerationWorker"
#: As many of the last rollouts are kept.
_ROLLOUTS = 64


@contextmanager
def cpu_workers(gpus: int, last_rollouts: Path) -> Iterator[None]:
    """Have NeMo-RL start a Ray that believes in `gpus` GPUs, with workers that run on the CPU.

    A Ray that RAY_ADDRESS names is joined as NeMo-RL does. When training ends, its last rollouts
    are written to a file, see comparison.py.
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
        replaced(grpo, "grpo_train", _keeping(grpo.grpo_train, last_rollouts)),
    ):
        yield


@contextmanager
def gpu_workers(last_rollouts: Path) -> Iterator[None]:
    """Leave Ray and workers to NeMo-RL, and run all of them in this Python.

    It has to have what they import, for NeMo-RL would make an environment for each kind.
    """
    system = virtual_cluster.PY_EXECUTABLES.SYSTEM
    ACTOR_ENVIRONMENT_REGISTRY.update(dict.fromkeys(ACTOR_ENVIRONMENT_REGISTRY, system))
    with replaced(grpo, "grpo_train", _keeping(grpo.grpo_train, last_rollouts)):
        yield


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


def _keeping(train: Callable[..., None], path: Path) -> Callable[..., None]:
    """Make `grpo_train` write its last rollouts, as both sides see them, when it ends."""
    signature = inspect.signature(train)

    @wraps(train)
    def train_and_keep(*args: Any, **kwargs: Any) -> None:
        path.unlink(missing_ok=True)
        arguments = signature.bind(*args, **kwargs).arguments
        policy, generation = arguments["policy"], arguments["policy_generation"]
        with _last_of(generation) as last:
            train(*args, **kwargs)
        if last:  # else it ended before anything was generated, and says why
            write_rollouts(path, _seen_by_both(policy, last[0]))

    return train_and_keep


@contextmanager
def _last_of(generation: Any) -> Iterator[list[Any]]:
    """Keep the batch that was generated last."""
    generate = generation.generate
    last: list[Any] = []

    def generate_and_keep(*args: Any, **kwargs: Any) -> Any:
        last[:] = [generate(*args, **kwargs)]
        return last[0]

    generation.generate = generate_and_keep
    try:
        yield last
    finally:
        del generation.generate  # a cycle would keep its workers beyond the end of Ray


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
