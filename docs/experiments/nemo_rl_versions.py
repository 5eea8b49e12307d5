"""Which versions of NeMo-RL have what Equipoise assumes: the table of docs/nemo-rl.md.

    python docs/experiments/nemo_rl_versions.py v0.7.0=/path/to/RL main-7ea279a=/path/to/another

Of the tried versions the code is read. Of v0.8.0 no code was: its column is what its API reference
lists, as far as it was seen.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from equipoise.config.nemo_rl.assumptions import ASSUMPTIONS, TRIED, Assumption, lack_of

UNREAD = "v0.8.0"
#: Files whose modules the API reference of v0.8.0 does not list beside their siblings.
ABSENT = ("nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py",)
#: File -> names that it lists there; other names, and texts, were not seen.
LISTED: Mapping[str, tuple[str, ...]] = {
    "nemo_rl/algorithms/grpo.py": ("setup",),
    "nemo_rl/algorithms/async_utils/replay_buffer.py": ("ReplayBufferImpl",),
    "nemo_rl/algorithms/async_utils/trajectory_collector.py": ("AsyncTrajectoryCollector",),
    "nemo_rl/data/collate_fn.py": (),
    "nemo_rl/data/datasets/raw_dataset.py": ("RawDataset",),
    "nemo_rl/data/datasets/response_datasets/__init__.py": (),
    "nemo_rl/distributed/ray_actor_environment_registry.py": ("ACTOR_ENVIRONMENT_REGISTRY",),
    "nemo_rl/distributed/virtual_cluster.py": ("PY_EXECUTABLES", "init_ray"),
    "nemo_rl/environments/interfaces.py": (),
    "nemo_rl/environments/utils.py": (),
    "nemo_rl/models/automodel/setup.py": (
        *("validate_and_prepare_config", "setup_distributed", "setup_model_and_optimizer"),
    ),
    "nemo_rl/models/megatron/data.py": (),
    "nemo_rl/models/megatron/setup.py": ("validate_model_paths",),
    "nemo_rl/models/policy/lm_policy.py": (),
    "nemo_rl/models/policy/utils.py": (),
}
NOTHING = "its file"
SHOWN = 3


def columns() -> tuple[str, ...]:
    """The heads of the columns of versions."""
    return (*TRIED, UNREAD)


def row(assumption: Assumption) -> tuple[str, str, str]:
    """What is assumed: the file, what of it, and what needs it."""
    names = [f"`{name}`" for name in assumption.names]
    parts = names if len(names) <= SHOWN else [f"{len(names)} names"]
    if count := len(assumption.texts):
        parts = [*parts, f"{count} texts" if count > 1 else "a text"]
    return f"`{assumption.file}`", ", ".join(parts) or NOTHING, assumption.need


def read(root: Path, assumption: Assumption) -> str:
    """Whether the version at `root` has it all."""
    return "absent" if lack_of(root, assumption) else "present"


def listed(assumption: Assumption) -> str:
    """Say what was seen of it in v0.8.0."""
    if assumption.file in ABSENT:
        return "absent"
    if assumption.file not in LISTED:
        return "not seen"
    seen = [f"`{name}`" for name in assumption.names if name in LISTED[assumption.file]]
    if len(seen) == len(assumption.names) and not assumption.texts:
        return "present"
    return f"only seen: {', '.join(seen) or NOTHING}"


def table(roots: Mapping[str, Path]) -> Iterator[str]:
    """The lines of the table; `roots` are the checkouts of the tried versions by their names."""
    heads = ("file of NeMo-RL", "what", "need", *columns())
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for assumption in ASSUMPTIONS:
        states = [read(roots[name], assumption) for name in TRIED]
        yield f"| {' | '.join((*row(assumption), *states, listed(assumption)))} |"


if __name__ == "__main__":
    pairs = (word.split("=", 1) for word in sys.argv[1:])
    print("\n".join(table({name: Path(path) for name, path in pairs})))
