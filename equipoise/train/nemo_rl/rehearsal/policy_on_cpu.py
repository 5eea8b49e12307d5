"""The part of a DTensor worker that differs on a CPU, in both of NeMo-RL's."""

# ruff: noqa: E402  the CPU takes CUDA's place before anything asks for CUDA
import sys

from equipoise.train.nemo_rl.rehearsal.cpu import CudaIsCpu, device_id, use_cpu_for_cuda

use_cpu_for_cuda()
sys.modules["triton"] = None  # type: ignore[assignment]  # it compiles for GPUs alone

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel


class PolicyOnCpu:
    """Before a worker's class: all methods stay NeMo-RL's, but those that ask the GPU's driver."""

    model: torch.nn.Module
    stream_weights_via_ipc_zmq: Callable[[int], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CudaIsCpu().__enter__()  # type: ignore[no-untyped-call]
        _use_sdpa_for_flash_attention()
        torch.manual_seed(0)  # NeMo-RL seeds no worker, and a fresh adapter's A is drawn here
        super().__init__(*args, **kwargs)

    def report_device_id(self) -> str:
        """In place of the GPU's UUID."""
        return device_id()

    def init_collective(self, *_: Any, **__: Any) -> None:
        """None: weights travel as between processes of one GPU, see below."""

    def broadcast_weights_for_collective(self, **_: Any) -> None:
        """Stream them to the generation's worker of the same rank."""
        self.stream_weights_via_ipc_zmq(self.get_free_memory_bytes())

    def get_free_memory_bytes(self) -> int:
        """So little that weights travel in several buffers, in bytes."""
        largest = max(parameter.numel() for parameter in self.model.parameters())
        return 32 * int(largest)


def _use_sdpa_for_flash_attention() -> None:
    """Let a model that asks for FlashAttention compute by SDPA: NeMo-RL packs for FlashAttention.

    SDPA keeps packed sequences apart, too: transformers masks by their positions.
    """
    check = PreTrainedModel._check_and_adjust_attn_implementation

    def checked(model: PreTrainedModel, name: str | None, *args: Any, **kwargs: Any) -> str:
        name = "sdpa" if name == "flash_attention_2" else name
        adjusted: str = check(model, name, *args, **kwargs)
        return adjusted

    PreTrainedModel._check_and_adjust_attn_implementation = checked
