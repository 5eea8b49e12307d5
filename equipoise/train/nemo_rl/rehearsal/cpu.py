"""CUDA in a worker of NeMo-RL, done by a CPU: devices named "cuda" are the CPU, NCCL is gloo."""

import os
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import device_mesh
from torch.overrides import TorchFunctionMode

_NAMES = {"cuda": "cpu", "nccl": "gloo"}


def start_ray(gpus: int) -> None:
    """Start a Ray, for NeMo-RL would join another one here. It asks for two CPUs per GPU."""
    import ray

    ray.init(
        address="local",
        num_gpus=gpus,
        num_cpus=2 * gpus + 2,
        resources={"nrl_tag_rehearsal": 1},  # NeMo-RL joins none with another's mark
        include_dashboard=False,
        log_to_driver=True,
    )


def device_id() -> str:
    """In place of a GPU's UUID: at this name a rank's training and its generation meet."""
    import ray

    return f"rehearsal-{ray.get_runtime_context().get_node_id()}-{os.environ['RANK']}"


class CudaIsCpu(TorchFunctionMode):
    """While it is entered, every tensor that is made on or sent to a GPU is on the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        return _on_cpu(func)(*args, **(kwargs or {}))


def use_cpu_for_cuda() -> None:
    """Replace, in this process, what a GPU would do outside of tensors' own operations."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where there is a GPU, too
    torch.distributed.init_process_group = _on_cpu(torch.distributed.init_process_group)
    device_mesh.init_device_mesh = _on_cpu(device_mesh.init_device_mesh)
    for name, replacement in _CUDA.items():
        setattr(torch.cuda, name, replacement)


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def value(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return _NAMES.get(value, value) if isinstance(value, str) else value

    @wraps(function)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        options = {name: value(argument) for name, argument in kwargs.items()}
        if isinstance(options.get("device"), int):
            options["device"] = "cpu"
        if "pin_memory" in options:
            options["pin_memory"] = False
        return function(*map(value, args), **options)

    return on_cpu


_NOTHING = lambda *_, **__: None  # noqa: E731
_CUDA: dict[str, Any] = {
    "current_device": lambda: 0,
    "current_stream": lambda *_: SimpleNamespace(synchronize=_NOTHING, wait_stream=_NOTHING),
    "get_device_capability": lambda *_: (9, 0),
    "get_device_name": lambda *_: "CPU",
    "nvtx": SimpleNamespace(range_push=_NOTHING, range_pop=_NOTHING),
    "reset_peak_memory_stats": _NOTHING,
    "synchronize": _NOTHING,
}
