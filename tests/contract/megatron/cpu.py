"""Stand-ins for a GPU's software, with which Megatron-Bridge and megatron-core run on a CPU.

    Transformer Engine   see stand_ins.py
    device "cuda"        is the CPU
    NCCL                 gloo
    streams, RNG         do nothing, or are the CPU's

`prepare` must have run before anything of Megatron is imported.
"""

import contextlib
import os
import socket
from types import SimpleNamespace

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it asks for the GPU's driver from torch 2.13 on

import stand_ins
import torch
from torch.overrides import TorchFunctionMode


def prepare(packages):
    """Make Megatron's packages importable, after the project's own, and the CPU its device."""
    stand_ins.install(packages)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= alone | {"MASTER_PORT": str(_free_port())} | os.environ
    _replace_cuda()
    CpuForCuda().__enter__()
    _adjust_megatron()


def _free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class CpuForCuda(TorchFunctionMode):
    """Every tensor that is asked for on a GPU is on the CPU, and says that it is on a GPU."""

    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.pin_memory:
            return args[0].clone()  # Megatron frees the original
        if function is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        kwargs = {key: _on_cpu(value) for key, value in kwargs.items()}
        result = function(*map(_on_cpu, args), **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def _on_cpu(value):
    if isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda":
        return torch.device("cpu")
    return value


class _Stream:
    """There is one queue of work on a CPU."""

    def wait_stream(self, stream):
        """Nothing to wait for."""

    def is_capturing(self):
        """An optimizer asks, from torch 2.13 on."""
        return False


def _replace_cuda():
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *_, **__: None)  # one each: torch wants them distinct
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda *_: "CPU"
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(name="CPU", major=0, minor=0)
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.Stream = torch.cuda.current_stream = torch.accelerator.current_stream = _Stream
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    start = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda _=None, **words: start(
        **words | {"backend": "gloo"}
    )


def _adjust_megatron():
    """Replace decisions that these versions make by themselves, and wrongly without a GPU."""
    from megatron.bridge.training import initialize
    from megatron.core.tensor_parallel import random

    stand_ins.adapt_lora()
    # An index builder for pretraining data, which nobody uses here and make would compile.
    initialize.compile_helpers = lambda: None
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
