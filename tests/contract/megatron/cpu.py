"""What stands in for a GPU's software where Megatron-Bridge and megatron-core run on a CPU.

    Transformer Engine   absent, as megatron-core's own probes find it; only the modules of
                         Megatron-Bridge that import it without a probe see two empty classes
    device "cuda"        is the CPU
    NCCL                 gloo
    streams, RNG         do nothing, or are the CPU's

`prepare` must have run before anything of Megatron is imported.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import socket
import sys
import types
import typing
import warnings

import torch
import typing_extensions
from torch.overrides import TorchFunctionMode

#: Modules that import Transformer Engine or triton without asking whether they are there.
_UNGUARDED = (
    "megatron.bridge.peft.lora",
    "megatron.bridge.peft.lora_layers",
    "megatron.core.inference.contexts.attention_context.triton.tensor_ops",
    "megatron.core.transformer.moe.paged_stash",
)


def prepare(packages: str) -> None:
    """Make Megatron's packages importable, after the project's own, and the CPU its device."""
    warnings.filterwarnings("ignore")
    sys.path.append(packages)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(_free_port())
    if sys.version_info < (3, 12):
        typing.override = typing_extensions.override
        typing.TypedDict = typing_extensions.TypedDict
    sys.meta_path.insert(0, _StandIns())
    _replace_cuda()
    CpuForCuda().__enter__()
    _adjust_megatron()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class _StandIns(importlib.abc.MetaPathFinder):
    """Empty classes of Transformer Engine and triton, while an unguarded module is imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in _UNGUARDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            absent = {name: stub for name, stub in _stubs().items() if name not in sys.modules}
            sys.modules.update(absent)
            try:
                execute(module)
            finally:
                for name in absent:
                    del sys.modules[name]

        spec.loader.exec_module = exec_module
        return spec


def _stubs() -> dict[str, types.ModuleType]:
    linear, norm_linear = (type(name, (), {}) for name in ("Linear", "LayerNormLinear"))
    sequential = types.SimpleNamespace(Sequential=type("Sequential", (), {}))
    pytorch = _module("transformer_engine.pytorch", Linear=linear, ops=sequential)
    pytorch.LayerNormLinear = norm_linear
    stubs = {
        "transformer_engine": _module("transformer_engine", pytorch=pytorch),
        "transformer_engine.pytorch": pytorch,
    }
    if importlib.util.find_spec("triton") is None:
        language = _module("triton.language", constexpr=object)
        stubs["triton"] = _module("triton", jit=lambda function: function, language=language)
        stubs["triton.language"] = language
    return stubs


def _module(name: str, **attributes: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    return module


class CpuForCuda(TorchFunctionMode):
    """Every tensor that is asked for on a GPU is on the CPU, and says that it is on a GPU."""

    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.pin_memory:
            return args[0].clone()  # Megatron frees the original
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        kwargs = {key: _on_cpu(value) for key, value in kwargs.items()}
        result = function(*map(_on_cpu, args), **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def _on_cpu(value: object) -> object:
    if isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda":
        return torch.device("cpu")
    return value


class _Stream:
    """There is one queue of work on a CPU."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""


def _replace_cuda() -> None:
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *_, **__: None)  # one each: torch wants them distinct
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda *_: "CPU"
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.Stream = torch.cuda.current_stream = _Stream
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    start = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda _=None, **words: start(
        **words | {"backend": "gloo"}
    )


def _adjust_megatron() -> None:
    """What these versions decide by themselves, and wrongly so without a GPU."""
    from megatron.bridge.peft import module_matcher, utils
    from megatron.bridge.training import initialize
    from megatron.core.tensor_parallel import random

    # megatron-core has None in place of Transformer Engine's classes, which is taken for a class.
    utils.HAVE_TE = False
    for kind in ("COL", "LN_COL", "ROW"):
        setattr(module_matcher, f"HAVE_TE_{kind}_LINEAR", False)
    # An index builder for pretraining data, which nobody uses here and make would compile.
    initialize.compile_helpers = lambda: None
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
