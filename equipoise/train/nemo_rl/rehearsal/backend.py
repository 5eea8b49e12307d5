"""NeMo-RL's own cluster, worker groups, policy and generation, with workers that need no GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from nemo_rl.distributed import virtual_cluster
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.models.generation.vllm import vllm_generation
from nemo_rl.models.policy import lm_policy

from equipoise.train.nemo_rl.rehearsal.cpu import start_ray

_POLICY = "equipoise.train.nemo_rl.rehearsal.policy_worker.CpuPolicyWorker"
_GENERATION = "equipoise.train.nemo_rl.rehearsal.generation_worker.CpuGenerationWorker"


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
        mock.patch.object(lm_policy, "resolve_policy_worker_cls", lambda *_: _POLICY),
        mock.patch.object(vllm_generation, "resolve_generation_worker_cls", lambda *_: _GENERATION),
        mock.patch.object(virtual_cluster, "init_ray", reach_ray),
    ):
        yield
