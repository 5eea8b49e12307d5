"""Which nodes of a Ray cluster lack a file, as JSON; run by NeMo-RL's Python, on one of them.

The arguments are files that were just written here.
"""

import contextlib
import json
import sys
from pathlib import Path

_SECONDS = 120


def main(paths: list[str]) -> None:
    """Print one line of JSON, the last one of standard output: node -> files that it lacks."""
    with contextlib.redirect_stdout(sys.stderr):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")

        @ray.remote(num_cpus=0)
        def lacks(names: list[str]) -> list[str]:
            return [name for name in names if not Path(name).exists()]

        nodes = [node for node in ray.nodes() if node["Alive"]]
        futures = [
            lacks.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(paths)
            for node in nodes
        ]
        missing = ray.get(futures, timeout=_SECONDS)
        names = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes]
    print(json.dumps(dict(zip(names, missing, strict=True))))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
