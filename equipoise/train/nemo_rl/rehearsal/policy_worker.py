"""NeMo-RL's DTensor worker on a CPU; NeMo-RL builds it by its full name."""

# ruff: noqa: E402  the CPU takes CUDA's place before anything asks for CUDA
import sys

from equipoise.train.nemo_rl.rehearsal.cpu import CudaIsCpu, device_id, use_cpu_for_cuda

use_cpu_for_cuda()
sys.modules["triton"] = None  # type: ignore[assignment]  # it compiles for GPUs alone

from typing import Any

import ray
import torch
from nemo_rl.models.policy.workers.dtensor_policy_worker_v2 import DTensorPolicyWorkerV2Impl
from transformers import PreTrainedModel


class CpuPolicyWorkerImpl(DTensorPolicyWorkerV2Impl):
    """All methods stay NeMo-RL's, but those that ask the GPU's driver."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CudaIsCpu().__enter__()  # type: ignore[no-untyped-call]
        _use_sdpa_for_flash_attention()
        torch.manual_seed(0)  # NeMo-RL seeds no worker, and a fresh adapter's A is drawn here
        super().__init__(*args, **kwargs)

    def report_device_id(self) -> str:
        return device_id()

    def get_free_memory_bytes(self) -> int:
        """So little that weights travel in several buffers, in bytes."""
        largest = max(parameter.numel() for parameter in self.model.parameters())
        return 32 * int(largest)


def _use_sdpa_for_flash_attention() -> None:
    """Let packed sequences use SDPA, not FlashAttention: transformers masks by their positions."""
    check = PreTrainedModel._check_and_adjust_attn_implementation

    def checked(model: PreTrainedModel, name: str | None, *args: Any, **kwargs: Any) -> Any:
        return check(model, "sdpa" if name == "flash_attention_2" else name, *args, **kwargs)

    PreTrainedModel._check_and_adjust_attn_implementation = checked


#: Ray sends a decorated class by value: this one's base is loaded by name, hence from this module.
CpuPolicyWorker = ray.remote(CpuPolicyWorkerImpl)
