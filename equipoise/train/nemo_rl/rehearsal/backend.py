"""NeMo-RL's own cluster, worker groups, policy and generation, with workers that need no GPU.

Or with its own workers, on GPUs, see `gpu_workers`.
"""

import inspect
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
from equipoise.train.nemo_rl.rehearsal.vllm import generation_worker
from equipoise.train.nemo_rl.together import replaced

#: NeMo-RL runs them in vLLM's environment.
_ASYNCHRONOUS = [
    f"nemo_rl.algorithms.async_utils.{name}"
    for name in ("ReplayBuffer", "AsyncTrajectoryCollector")
]
_WORKERS = "nemo_rl.models.policy.workers"
_OURS = "equipoise.train.nemo_rl.rehearsal"
#: By NeMo-RL's own.
_POLICIES = {
    f"{_WORKERS}.dtensor_policy_worker.DTensorPolicyWorker": (
        f"{_OURS}.first_policy_worker.FirstCpuPolicyWorker"
    ),
    f"{_WORKERS}.dtensor_policy_worker_v2.DTensorPolicyWorkerV2": (
        f"{_OURS}.policy_worker.CpuPolicyWorker"
    ),
}
#: As many of the last rollouts are kept.
_ROLLOUTS = 64


@contextmanager
def cpu_workers(gpus: int, last_rollouts: Path) -> Iterator[None]:
    """Inside, NeMo-RL starts a Ray that believes in `gpus` GPUs, and its workers run on the CPU.

    A Ray that RAY_ADDRESS names is joined as NeMo-RL does. When training ends, its last rollouts
    are written to a file, see comparison.py.
    """
    workers = [generation_worker(asynchronous) for asynchronous in (False, True)]
    joins = "RAY_ADDRESS" in os.environ
    reach_ray = virtual_cluster.init_ray if joins else partial(start_ray, gpus)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # all workers would get it, and Ray count by it
    here = [*_POLICIES.values(), *_ASYNCHRONOUS]
    ACTOR_ENVIRONMENT_REGISTRY.update(dict.fromkeys(here, virtual_cluster.PY_EXECUTABLES.SYSTEM))
    ACTOR_ENVIRONMENT_REGISTRY.update({worker.name: worker.python for worker in workers})
    with (
        replaced(lm_policy, "resolve_policy_worker_cls", _policy_worker_of),
        replaced(vllm_generation, "resolve_generation_worker_cls", _generation_worker_of),
        replaced(virtual_cluster, "init_ray", reach_ray),
        _kept(last_rollouts),
    ):
        yield


@contextmanager
def gpu_workers(last_rollouts: Path) -> Iterator[None]:
    """Inside, NeMo-RL's Ray and workers are its own, and all run in this Python.

    It has to have what they import, for NeMo-RL would make an environment for each kind.
    """
    system = virtual_cluster.PY_EXECUTABLES.SYSTEM
    ACTOR_ENVIRONMENT_REGISTRY.update(dict.fromkeys(ACTOR_ENVIRONMENT_REGISTRY, system))
    with _kept(last_rollouts):
        yield


@contextmanager
def _kept(last_rollouts: Path) -> Iterator[None]:
    """Inside, both trainers write their last rollouts."""
    with (
        replaced(grpo, "grpo_train", _keeping(grpo.grpo_train, last_rollouts)),
        replaced(grpo, "async_grpo_train", _keeping(grpo.async_grpo_train, last_rollouts)),
    ):
        yield


def _policy_worker_of(name: str, config: Any) -> str:
    """Raises `EquipoiseError` for a worker that a CPU has no place for."""
    worker = resolve_policy_worker_cls(name, config)
    if worker not in _POLICIES:
        raise EquipoiseError(
            "rehearsal.no-such-worker",
            f"no rehearsal on a CPU can start {worker.rpartition('.')[2]}",
            "Leave policy.megatron_cfg and policy.quant_cfg to the rehearsal, or take GPUs.",
        )
    return _POLICIES[worker]


def _generation_worker_of(_: str, config: Any) -> str:
    return generation_worker(config["vllm_cfg"]["async_engine"]).name


def _keeping(train: Callable[..., None], path: Path) -> Callable[..., None]:
    """`grpo_train` that writes its last rollouts, as both sides see them, when it ends."""
    signature = inspect.signature(train)

    @wraps(train)
    def train_and_keep(*args: Any, **kwargs: Any) -> None:
        path.unlink(missing_ok=True)
        arguments = signature.bind(*args, **kwargs).arguments
        policy, generation = arguments["policy"], arguments["policy_generation"]
        with _last_of(generation) as last, _before_shutdown(policy, lambda: keep(policy, last)):
            train(*args, **kwargs)

    def keep(policy: Any, last: Sequence[Any]) -> None:
        if not last:
            return  # it ended before anything was generated, and says why
        pad = {"output_ids": policy.cfg["generation"]["_pad_token_id"]}
        output = BatchedDataDict.from_batches(list(last), pad_value_dict=pad)
        write_rollouts(path, _seen_by_both(policy, output))

    return train_and_keep


@contextmanager
def _before_shutdown(policy: Any, act: Callable[[], None]) -> Iterator[None]:
    """Act when asynchronous training shuts the policy down, else at the end."""
    shutdown = policy.shutdown

    def act_and_shutdown() -> Any:
        del policy.shutdown
        act()
        return shutdown()

    policy.shutdown = act_and_shutdown
    try:
        yield
        if "shutdown" in vars(policy):
            act()
    finally:
        vars(policy).pop("shutdown", None)  # a cycle would keep its workers beyond the end of Ray


@contextmanager
def _last_of(generation: Any) -> Iterator[deque[Any]]:
    """Inside, keeps what was generated last: one batch, or as many rows of asynchronous calls."""
    one_by_one = generation.cfg["vllm_cfg"]["async_engine"]
    name = "generate_async" if one_by_one else "generate"
    generate, last = getattr(generation, name), deque[Any](maxlen=_ROLLOUTS if one_by_one else 1)

    def generate_and_keep(*args: Any, **kwargs: Any) -> Any:
        output = generate(*args, **kwargs)
        last.append(output)
        return output

    async def generate_and_keep_rows(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for index, output in generate(*args, **kwargs):
            last.append(output)
            yield index, output

    setattr(generation, name, generate_and_keep_rows if one_by_one else generate_and_keep)
    try:
        yield last
    finally:
        delattr(generation, name)  # a cycle would keep its workers beyond the end of Ray


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
