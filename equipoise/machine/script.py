"""Report what a Python, or the Ray cluster that it joins, has, as one last line of JSON.

Run by NeMo-RL's Python, which need not have Equipoise. NeMo-RL itself is not imported, which takes
long.

    python script.py MARK NAME...    itself, these distributions, GPUs, and Ray's nodes
"""

import contextlib
import json
import os
import platform
import socket
import sys
from importlib import metadata
from typing import Any


def look(own_cluster: str, *names: str) -> dict[str, Any]:
    """Report the packages and GPUs of this Python.

    `own_cluster` marks a Ray that NeMo-RL started for a run of its own.
    """
    cluster: dict[str, Any] = {"gpus": None, "problem": None}
    try:
        cluster["gpus"] = cluster_gpus(own_cluster)
    except Exception as error:  # noqa: BLE001  whatever Ray says is told to the user
        cluster["problem"] = str(error)
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "gpus": count_gpus(),
        "cluster": cluster,
    }


def version(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def count_gpus() -> int:
    """The GPUs that torch sees here; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


def cluster_gpus(own_cluster: str) -> list[int] | None:
    """The GPUs of every node of the Ray that NeMo-RL would join; None when it would start one.

    The address is found as NeMo-RL finds it.
    """
    try:
        import ray
        from ray._private.services import get_ray_address_from_environment
        from ray._private.utils import get_ray_address_file
    except ImportError:
        return None
    try:
        refuse_silence(get_ray_address_from_environment("auto", None), get_ray_address_file(None))
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        return None
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    ray.shutdown()
    if any(name.startswith(own_cluster) for resources in nodes for name in resources):
        return None
    return [int(resources.get("GPU", 0)) for resources in nodes]


def refuse_silence(address: str, file: str) -> None:
    """Raise `RuntimeError` where nothing listens at `host:port`; Ray itself would try for minutes.

    Without RAY_ADDRESS it is in the `file` that a Ray leaves behind when it is killed.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            source = (
                "RAY_ADDRESS is" if os.environ.get("RAY_ADDRESS") else f"remove {file}, which is"
            )
            raise RuntimeError(f"nobody answers at {address} ({error}): {source} wrong") from error


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        answer = look(*sys.argv[1:])
    print(json.dumps(answer))  # noqa: T201
