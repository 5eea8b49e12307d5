"""NeMo-RL's two vLLM workers on a CPU; NeMo-RL builds one by its name, in vLLM's environment."""

import os
from typing import Any

import ray
from nemo_rl.models.generation.vllm.vllm_worker import VllmGenerationWorkerImpl
from nemo_rl.models.generation.vllm.vllm_worker_async import VllmAsyncGenerationWorkerImpl

from equipoise.train.nemo_rl.rehearsal.cpu import device_id, use_cpu_for_cuda
from equipoise.train.nemo_rl.rehearsal.vllm import DEVICE_VARIABLE

#: What differs from the engine of a GPU: vLLM refuses its sleep mode on a CPU, where it ignores the
#: calls of it, and a graph would be compiled for minutes.
_OPTIONS = {
    "enable_sleep_mode": False,
    "enforce_eager": True,
    "worker_cls": "equipoise.train.nemo_rl.rehearsal.vllm_process.Worker",
}
#: Otherwise vLLM takes a part of the machine's memory, and reports its use.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


class _OnCpu:
    """All methods are NeMo-RL's, but that vLLM is made for a CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_cpu_for_cuda()
        os.environ.update(_ENVIRONMENT)
        cores = sorted(os.sched_getaffinity(0))  # one each: a tiny model gains nothing from more
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(cores[int(os.environ["RANK"]) % len(cores)])
        os.environ[DEVICE_VARIABLE] = device_id()
        super().__init__(*args, **kwargs)

    def _create_engine(self, llm_kwargs: dict[str, Any]) -> None:
        super()._create_engine(llm_kwargs | _OPTIONS)  # type: ignore[misc]


class CpuVllmWorkerImpl(_OnCpu, VllmGenerationWorkerImpl):
    """The one that generates a batch."""


class CpuAsyncVllmWorkerImpl(_OnCpu, VllmAsyncGenerationWorkerImpl):
    """The one with vLLM's asynchronous engine."""


#: As in policy_worker.py.
CpuVllmWorker = ray.remote(CpuVllmWorkerImpl)
CpuAsyncVllmWorker = ray.remote(CpuAsyncVllmWorkerImpl)
