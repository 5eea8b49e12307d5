"""The process in which vLLM holds the model, on a CPU, with NeMo-RL's extension; vLLM imports it.

A GPU's UUID is the name that the worker gives it, weights come through the socket and not by CUDA's
shared memory or NCCL, and they stay where a refit writes: oneDNN would pack them into copies of its
own.
"""

import os

import torch
from nemo_rl.models.generation.vllm import vllm_backend
from nemo_rl.utils import nvml
from torch.multiprocessing.reductions import rebuild_tensor
from vllm import _custom_ops
from vllm.v1.worker.cpu_worker import CPUWorker

from equipoise.train.nemo_rl.rehearsal.cpu import use_cpu_for_cuda
from equipoise.train.nemo_rl.rehearsal.vllm import DEVICE_VARIABLE

use_cpu_for_cuda()
nvml.get_device_uuid = lambda _: os.environ[DEVICE_VARIABLE]
vllm_backend.rebuild_cuda_tensor_from_ipc = lambda handle, _: rebuild_tensor(*handle[0])  # type: ignore[no-untyped-call]
_custom_ops._supports_onednn = False
_extension = vllm_backend.VllmInternalWorkerExtension
_extension.init_collective = lambda *_: None
_extension.update_weights_from_collective = _extension.update_weights_via_ipc_zmq


class Worker(CPUWorker):
    """VLLM's own."""

    def init_device(self) -> None:
        """NeMo-RL's extension asks for the device's number, which vLLM leaves open on a CPU."""
        self.device = torch.device("cpu", 0)
        super().init_device()
