"""NeMo-RL's own cluster, worker groups, policy and generation, with workers that need no GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from nemo_rl.distributed import virtual_cluster
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.models.generation.vllm import vllm_generation
from nemo_rl.models.policy import lm_policy

from equipoise.engines.nemo_rl.hooks import replaced

_POLICY = "equipoise.engines.nemo_rl.rehearsal.policy_worker.CpuPolicyWorker"
_GENERATION = "equipoise.engines.nemo_rl.rehearsal.generation_worker.CpuGenerationWorker"


@contextmanager
def cpu_workers(gpus: int) -> Iterator[None]:
    """Inside, NeMo-RL starts a Ray that believes in `gpus` GPUs, and its workers run on the CPU."""
    for worker in (_POLICY, _GENERATION):
        ACTOR_ENVIRONMENT_REGISTRY[worker] = virtual_cluster.PY_EXECUTABLES.SYSTEM
    with (
        replaced(lm_policy, "resolve_policy_worker_cls", lambda *_: _POLICY),
        replaced(vllm_generation, "resolve_generation_worker_cls", lambda *_: _GENERATION),
        replaced(virtual_cluster, "init_ray", lambda: start_ray(gpus)),
    ):
        yield


def start_ray(gpus: int) -> None:
    """A Ray of its own, for NeMo-RL would join one that runs here for somebody else.

    Its GPUs and CPUs are numbers that workers are placed by; NeMo-RL asks for two CPUs per GPU.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray would count them
    ray.init(
        address="local",
        num_gpus=gpus,
        num_cpus=2 * gpus + 2,
        include_dashboard=False,
        log_to_driver=True,
    )
