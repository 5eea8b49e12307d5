"""Report what a Python has, as JSON; run by that Python, which need not have Equipoise.

The arguments are the distributions to look for. NeMo-RL itself is not imported, which takes long.
"""

import contextlib
import json
import os
import platform
import socket
import sys
from importlib import metadata
from typing import Any

#: What NeMo-RL names a resource of a Ray that it started for a run on one machine.
OWN_CLUSTER = "nrl_tag_"


def main(names: list[str]) -> None:
    """Print one line of JSON, the last one of standard output."""
    cluster: dict[str, Any] = {"gpus": None, "problem": None}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            cluster["gpus"] = cluster_gpus()
        except Exception as error:  # noqa: BLE001  whatever Ray says is told to the user
            cluster["problem"] = str(error)
        report = {
            "python": platform.python_version(),
            "versions": {name: version(name) for name in names},
            "gpus": count_gpus(),
            "cluster": cluster,
        }
    print(json.dumps(report))  # noqa: T201


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


def cluster_gpus() -> list[int] | None:
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
    if any(name.startswith(OWN_CLUSTER) for resources in nodes for name in resources):
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
    main(sys.argv[1:])
