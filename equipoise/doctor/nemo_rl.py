"""NeMo-RL: the installation, its environments, Ray, and the nodes of a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which

from equipoise.config import Config
from equipoise.config.engine import ram_bytes
from equipoise.config.machine import (
    Machine,
    Refusal,
    machine_warnings,
    megatron_needs,
    missing_packages,
    mixed_versions,
    read_only_workers,
    too_few_gpus,
)
from equipoise.doctor.checks import (
    GPUS,
    NEMO_RL,
    PACKAGES,
    RAY,
    SHARED_FOLDERS,
    Check,
    Result,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.doctor.software import (
    bfloat16,
    host_memory,
    nemo_rl_memory,
    torch_and_driver,
    used,
)
from equipoise.installation.gpus import Driver, TorchBuild, read_driver, torch_build
from equipoise.installation.locked import Change, changes, installed_in, locked_in
from equipoise.installation.nemo_rl import (
    find_installation,
    is_installed,
    placeholder_is_installed,
)
from equipoise.installation.probe import workers_folder
from equipoise.installation.shared import Unseen, slurm_nodes, unseen_by_ray, unseen_by_slurm
from equipoise.train.nemo_rl.launch import look_at_machine

_SHOWN = 4
_OURS = "equipoise"


def unused(why: str) -> Iterator[Result]:
    """Report on a NeMo-RL that no run is known to use."""
    if placeholder_is_installed():
        says = "the package nemo-rl of this Python is the empty placeholder of that name"
        yield warning(NEMO_RL, says, f"Remove it: uv pip uninstall nemo-rl. {NEMO_RL.remedy}")
    elif is_installed():
        yield ok(NEMO_RL, f"{find_installation().version}, and {why}")
    else:
        yield unchecked(NEMO_RL, f"there is none, and {why}")
    for check in (PACKAGES, RAY):
        yield unchecked(check, why)


def used_by(
    config: Config, environment: Mapping[str, str], *, gpu: bool, folders: Sequence[Path]
) -> Iterator[Result]:
    """Check what a run on NeMo-RL needs of this machine and of its cluster."""
    installation = find_installation()
    machine = look_at_machine()
    lacking = [*missing_packages(machine), *read_only_workers(machine)]
    if config.policy.megatron_cfg.enabled:
        lacking += megatron_needs(config, environment)
    yield from _refused(NEMO_RL, lacking) or [
        ok(NEMO_RL, f"{installation.version} at {installation.root}, Python {machine.python}")
    ]
    yield from packages(machine.root, _environments(machine, environment))
    info = machine.python_info
    summary = f"Python {info.python} and Ray {info.versions['ray']} in {len(machine.workers)} kinds"
    yield from _refused(RAY, [*mixed_versions(machine)]) or [ok(RAY, f"{summary} of environments")]
    if gpu:
        driver = read_driver()
        yield torch_and_driver(
            driver, _torch_of(machine.python), environment, lambda: machine.python_info.gpus
        )
        yield from gpus(config, machine, driver)
        yield from nemo_rl_memory(driver, config)
        yield from host_memory(config, ram_bytes())
    yield from (warning(SHARED_FOLDERS, text) for text in machine_warnings(config, environment))
    yield shared_folders(config, machine, environment, folders)


def _refused(check: Check, refusals: Sequence[Refusal]) -> list[Result]:
    return [failure(check, refusal.message, refusal.remedy) for refusal in refusals]


def _torch_of(python: Path) -> TorchBuild | None:
    folders = python.parents[1].glob("lib/python3*/site-packages")
    return next((build for folder in folders if (build := torch_build(folder))), None)


def _environments(machine: Machine, environment: Mapping[str, str]) -> list[Path]:
    """NeMo-RL's: that of the driver, and those of the workers that are made."""
    workers = workers_folder(machine.root, environment)
    return [machine.python.parents[1], *(path.parent for path in workers.glob("*/pyvenv.cfg"))]


def packages(root: Path, environments: Sequence[Path]) -> Iterator[Result]:
    """NeMo-RL's environments against its lock."""
    locked = locked_in(root)
    if not locked:
        yield unchecked(PACKAGES, f"{root} has no uv.lock to compare with")
        return
    installed = {folder: installed_in(folder) for folder in environments}
    for folder, names in installed.items():
        if _OURS in names:
            remedy = (
                f"Remove it: uv pip uninstall --python {folder} {_OURS}. A start puts it beside."
            )
            yield warning(PACKAGES, f"{_OURS} is installed in {folder}", remedy)
    pairs = ((folder, [*changes(names, locked)]) for folder, names in installed.items())
    changed = {folder: packages for folder, packages in pairs if packages}
    message = "; ".join(f"{folder}: {_named(packages)}" for folder, packages in changed.items())
    if not message:
        yield ok(PACKAGES, f"{len(environments)} environments are as {root / 'uv.lock'} says")
        return
    vital = any(change.vital for packages in changed.values() for change in packages)
    yield (failure if vital else warning)(PACKAGES, f"changed since they were made: {message}")


def _named(changed: Sequence[Change]) -> str:
    first = sorted(changed, key=lambda c: (not c.vital, c.name.startswith("nvidia")))[:_SHOWN]
    remaining = len(changed) - len(first)
    return ", ".join(map(str, first)) + (f" and {remaining} more" if remaining else "")


def gpus(config: Config, machine: Machine, driver: Driver | None) -> Iterator[Result]:
    """The GPUs of the Ray cluster, or of the one that NeMo-RL would start here."""
    if refused := _refused(GPUS, [*too_few_gpus(config, machine)]):
        yield from refused
        return
    local_gpus = driver.gpus if driver else ()
    doubts = [result for result in (used(local_gpus), bfloat16(local_gpus, config)) if result]
    cluster = machine.python_info.cluster
    where = f"nodes of the Ray cluster have {', '.join(map(str, cluster))}" if cluster else "here"
    yield from doubts or [ok(GPUS, f"{machine.python_info.gpus} {where}")]


def shared_folders(
    config: Config, machine: Machine, environment: Mapping[str, str], folders: Sequence[Path]
) -> Result:
    """Whether every node sees the folders of this one."""
    if machine.python_info.cluster is not None:
        return seen_by_nodes(unseen_by_ray(machine.python, folders), folders)
    return in_slurm(environment, folders, config.cluster.num_nodes)


def in_slurm(environment: Mapping[str, str], folders: Sequence[Path], num_nodes: int) -> Result:
    """Check the shared folders of a Slurm job, where no Ray cluster is joined."""
    nodes = slurm_nodes(environment)
    if nodes > 1 and (srun := which("srun")):
        return seen_by_nodes(unseen_by_slurm(srun, nodes, folders), folders)
    if num_nodes == 1:
        return ok(SHARED_FOLDERS, "one node, which has its own")
    why = "this process is in no Slurm job of several nodes, and no Ray cluster runs here"
    return unchecked(SHARED_FOLDERS, f"{why}: look again inside the job")


def seen_by_nodes(unseen: Unseen, folders: Sequence[Path]) -> Result:
    """Report what the nodes answered."""
    blind = [f"{node} does not see {_list(lacks)}" for node, lacks in unseen.items() if lacks]
    if blind:
        return failure(SHARED_FOLDERS, "; ".join(blind))
    return ok(SHARED_FOLDERS, f"{len(unseen)} nodes see {_list(folders)}")


def _list(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))
