"""Whether NeMo-RL's Python, this machine and its Ray cluster can run a configuration."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.config.checks import describe_cluster
from equipoise.config.schema import Config
from equipoise.errors import EquipoiseError
from equipoise.installation.overlay import NEEDED
from equipoise.installation.probe import PythonInfo, Versions, workers_folder

_ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
_MATCH_LEVEL = "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"
_START_RAY = (
    "Start Ray on every node first, and this on one of them; on Slurm "
    "containers/slurm/grpo.sbatch does both."
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine for NeMo-RL."""

    root: Path  # NeMo-RL's
    python: Path  # of its driver
    python_info: PythonInfo  # by that Python
    workers: frozenset[Versions]  # what the workers' environments have
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A cause of failure and its remedy."""

    message: str
    remedy: str


def smaller(config: Config) -> str:
    """Say what to do where a configuration is too large for what is here, with a command."""
    return (
        "Look at it with --dry-run, try it with --rehearse, or run `uv run "
        f"recipes/grpo_{config.equipoise.task}.py --engine local --config "
        "nemo_configs/local.yaml` (CPU), or with --config nemo_configs/small.yaml (one GPU), "
        "which needs no NeMo-RL."
    )


def refuse_machine(config: Config, machine: Machine) -> None:
    """Raise one `EquipoiseError` with everything that would fail after minutes."""
    refused = [f"{refusal.message}\n  {refusal.remedy}" for refusal in refusals(config, machine)]
    if refused:
        raise EquipoiseError("\n".join(refused), "")


def refusals(config: Config, machine: Machine) -> Iterator[Refusal]:
    """Everything that would fail."""
    yield from missing_packages(machine)
    yield from mixed_versions(machine)
    yield from read_only_workers(machine)
    yield from too_few_gpus(config, machine)
    if config.policy.megatron_cfg.enabled:
        yield from megatron_needs(config, machine.environment)


def machine_warnings(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Warn of what is hardly meant."""
    if config.cluster.num_nodes > 1 and not environment.get("HF_HOME"):
        yield (
            "HF_HOME is not set: every node downloads the model for itself; set it to a folder "
            "that all nodes see"
        )


def missing_packages(machine: Machine) -> Iterator[Refusal]:
    """Refuse a Python of NeMo-RL that lacks what our code imports."""
    if missing := machine.python_info.missing((*NEEDED, "ray")):
        yield Refusal(
            f"NeMo-RL's Python {machine.python} has no {', '.join(missing)}",
            f"Run `uv sync --locked` in {machine.root}, or name the Python of NeMo-RL's driver in "
            "NEMO_RL_PYTHON.",
        )


def mixed_versions(machine: Machine) -> Iterator[Refusal]:
    """Ray refuses a worker whose Python or Ray is not that of the driver."""
    driver = Versions(machine.python_info.python, machine.python_info.versions["ray"] or "none")
    level = machine.environment.get(_MATCH_LEVEL, "patch")
    for worker in sorted(machine.workers, key=str):
        if _comparable(driver, level) != _comparable(worker, level):
            yield Refusal(
                f"NeMo-RL's driver {machine.python} has {driver}, environments of its workers have "
                f"{worker}, and Ray refuses such a mixture",
                "Take the environments that NeMo-RL's own uv.lock and .python-version make; remove "
                "a worker's that is not such a one, or half made, and NeMo-RL makes it again.",
            )


def read_only_workers(machine: Machine) -> Iterator[Refusal]:
    """NeMo-RL makes its workers' environments, and changes files of vLLM when one starts."""
    folder = workers_folder(machine.root, machine.environment)
    installed = sorted(folder.glob("*/lib/python3*/site-packages/vllm"))
    # Its files are links where uv made them so, and what they name may be out of reach.
    needed = [path for vllm in installed for path in (vllm, vllm / "__init__.py")]
    closed = [path for path in needed or [_nearest(folder)] if not os.access(path, os.W_OK)]
    if closed:
        yield Refusal(
            f"{closed[0]} cannot be written to, and NeMo-RL changes it when its workers start",
            "Start the image so that its files can be changed: with Apptainer --fakeroot "
            "--writable-tmpfs, as containers/slurm/grpo.sbatch does. Of a checkout name a folder "
            "of your own in NEMO_RL_VENV_DIR.",
        )


def _nearest(folder: Path) -> Path:
    """The folder, or the first one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _comparable(versions: Versions, level: str) -> tuple[str, str]:
    python = versions.python.rpartition(".")[0] if level == "minor" else versions.python
    return python, versions.ray


def too_few_gpus(config: Config, machine: Machine) -> Iterator[Refusal]:
    """Of a running Ray cluster every node counts, of a Ray still to be started this machine."""
    needs = f"this configuration runs on NeMo-RL and {describe_cluster(config)}, and"
    cluster, info = config.cluster, machine.python_info
    if info.problem:
        yield Refusal(f"{needs} the Ray cluster cannot be joined: {info.problem}", _START_RAY)
    elif info.cluster is not None:
        able = sum(gpus >= cluster.gpus_per_node for gpus in info.cluster)
        if able < cluster.num_nodes:
            has = ", ".join(str(gpus) for gpus in info.cluster)
            yield Refusal(f"{needs} the nodes of the running Ray cluster have {has}", _START_RAY)
    elif cluster.num_nodes > 1:
        yield Refusal(
            f"{needs} no Ray cluster is running here: NeMo-RL would start one of this machine "
            "alone and wait for the others",
            _START_RAY,
        )
    elif info.gpus < cluster.gpus_per_node:
        yield Refusal(f"{needs} this machine has {info.gpus}", smaller(config))


def megatron_needs(config: Config, environment: Mapping[str, str]) -> Iterator[Refusal]:
    """Variables without which NeMo-RL's Megatron workers fail."""
    if not environment.get(_ARCHITECTURES):
        yield Refusal(
            f"{_ARCHITECTURES} is not set, and NeMo-RL's Megatron workers need it",
            f"For Hopper and Blackwell: export {_ARCHITECTURES}='9.0 10.0'; NeMo-RL's image does.",
        )
    shared = ("NRL_MEGATRON_CHECKPOINT_DIR", "HF_HOME")
    if config.cluster.num_nodes > 1 and not any(environment.get(name) for name in shared):
        yield Refusal(
            f"neither {' nor '.join(shared)} is set: one node converts the model for Megatron, "
            "and the others would look for it in a folder that is not shared",
            f"Set {shared[0]} to a folder that all nodes see.",
        )
