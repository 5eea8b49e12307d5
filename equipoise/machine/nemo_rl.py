"""NeMo-RL: the installation, its environments, Ray, and the nodes of a cluster."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which

from equipoise.config import Config
from equipoise.config.checks import describe_cluster
from equipoise.config.nemo_rl.assumptions import (
    RELEASE,
    TRIED,
    is_tried,
)
from equipoise.config.nemo_rl.installation import (
    Installation,
    find_installation,
    is_installed,
    needs_of,
    placeholder_is_installed,
)
from equipoise.errors import EquipoiseError
from equipoise.machine.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.machine.overlay import NEEDED
from equipoise.machine.python import (
    Machine,
    Unseen,
    Versions,
    changes,
    installed_in,
    locked_in,
    look_at_machine,
    slurm_nodes,
    unseen_by_ray,
    unseen_by_slurm,
    workers_folder,
)
from equipoise.machine.software import (
    bfloat16,
    driver,
    host_memory,
    in_use,
    local_gpus,
    local_memory,
    local_torch,
    nemo_rl_memory,
    ram_bytes,
    smaller,
    torch_and_driver,
    torch_build,
)
from equipoise.machine.storage import existing, written_folders

#: What helps where no NeMo-RL can be used.
REMEDY = f"Start it in NeMo-RL's container, or set NEMO_RL_PATH to a checkout of {RELEASE}."
_ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
_MATCH_LEVEL = "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"
_START_RAY = (
    "Start Ray on every node first, and this on one of them; on Slurm "
    "containers/slurm/grpo.sbatch does both."
)
_SHOWN = 4
_OURS = "equipoise"


# --- what is looked at once ---------------------------------------------------------------------


def installation(case: Case) -> Installation:
    """The NeMo-RL that this run can use. Raises `EquipoiseError`."""
    return usable_installation(case.config, describe_cluster(case.config), smaller(case.config))


def usable_installation(config: Config, machines: str, instead: str = "") -> Installation:
    """The NeMo-RL with all that the run assumes of it; what to run `instead` is told without one.

    Raises `EquipoiseError`.
    """
    try:
        return find_installation(needs_of(config))
    except EquipoiseError as error:
        raise EquipoiseError(
            error.code,
            f"this configuration runs on NeMo-RL and {machines}, and {error.message}",
            f"{error.remedy} {instead}".rstrip(),
        ) from None


def machine(case: Case) -> Machine:
    """Ask NeMo-RL's Python for its packages and GPUs; takes seconds. Raises `EquipoiseError`."""
    return look_at_machine(case.once(installation).root, case.environment)


def _unused(case: Case) -> str:
    """Why no NeMo-RL is known to be used; empty where the run is one of NeMo-RL's."""
    if case.loaded is None:
        return case.without_run
    return "" if case.on_nemo_rl else "the local engine trains this"


# --- the installation ---------------------------------------------------------------------------


def nemo_rl(case: Case) -> Iterator[Finding]:
    """NeMo-RL, its driver's Python, and what its workers need."""
    if why := _unused(case):
        if placeholder_is_installed():
            says = "the package nemo-rl of this Python is the empty placeholder of that name"
            yield warning(says, f"Remove it: uv pip uninstall nemo-rl. {REMEDY}")
        elif is_installed():
            yield ok(f"{find_installation().version}, and {why}")
        else:
            yield unchecked(f"there is none, and {why}")
        return
    host = case.once(machine)
    lacking = [*missing_packages(host), *read_only_workers(host)]
    release = case.once(installation)
    if case.config.policy.megatron_cfg.enabled:
        lacking += megatron_needs(case.config, case.environment)
    yield from untried(release)
    yield from lacking or [ok(f"{release.version} at {release.root}, Python {host.python}")]


def untried(release: Installation) -> Iterator[Finding]:
    """Warn of a version that was not tried."""
    if not is_tried(release.version):
        yield warning(
            f"Equipoise was not tried with NeMo-RL {release.version}, which has what is assumed",
            f"Tried were {' and '.join(TRIED)}.",
        )


def missing_packages(machine: Machine) -> Iterator[Finding]:
    """Refuse a Python of NeMo-RL that lacks what our code imports."""
    if missing := machine.python_info.missing((*NEEDED, "ray")):
        yield failure(
            f"NeMo-RL's Python {machine.python} has no {', '.join(missing)}",
            f"Run `uv sync --locked` in {machine.root}, or name the Python of NeMo-RL's driver in "
            "NEMO_RL_PYTHON.",
        )


def read_only_workers(machine: Machine) -> Iterator[Finding]:
    """NeMo-RL makes its workers' environments, and changes files of vLLM when one starts."""
    folder = workers_folder(machine.root, machine.environment)
    installed = sorted(folder.glob("*/lib/python3*/site-packages/vllm"))
    # Its files are links where uv made them so, and what they name may be out of reach.
    needed = [path for vllm in installed for path in (vllm, vllm / "__init__.py")]
    closed = [path for path in needed or [existing(folder)] if not os.access(path, os.W_OK)]
    if closed:
        yield failure(
            f"{closed[0]} cannot be written to, and NeMo-RL changes it when its workers start",
            "Start the image so that its files can be changed: with Apptainer --fakeroot "
            "--writable-tmpfs, as containers/slurm/grpo.sbatch does. Of a checkout name a folder "
            "of your own in NEMO_RL_VENV_DIR.",
        )


def megatron_needs(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Variables without which NeMo-RL's Megatron workers fail."""
    if not environment.get(_ARCHITECTURES):
        yield failure(
            f"{_ARCHITECTURES} is not set, and NeMo-RL's Megatron workers need it",
            f"For Hopper and Blackwell: export {_ARCHITECTURES}='9.0 10.0'; NeMo-RL's image does.",
        )
    shared = ("NRL_MEGATRON_CHECKPOINT_DIR", "HF_HOME")
    if config.cluster.num_nodes > 1 and not any(environment.get(name) for name in shared):
        yield failure(
            f"neither {' nor '.join(shared)} is set: one node converts the model for Megatron, "
            "and the others would look for it in a folder that is not shared",
            f"Set {shared[0]} to a folder that all nodes see.",
        )


def packages(case: Case) -> Iterator[Finding]:
    """NeMo-RL's environments against its lock."""
    if why := _unused(case):
        yield unchecked(why)
        return
    host = case.once(machine)
    workers = workers_folder(host.root, case.environment).glob("*/pyvenv.cfg")
    yield from as_locked(host.root, [host.python.parents[1], *(path.parent for path in workers)])


def as_locked(root: Path, environments: Sequence[Path]) -> Iterator[Finding]:
    """Compare these environments with the lock of the NeMo-RL at `root`."""
    locked = locked_in(root)
    if not locked:
        yield unchecked(f"{root} has no uv.lock to compare with")
        return
    installed = {folder: installed_in(folder) for folder in environments}
    for folder, names in installed.items():
        if _OURS in names:
            remedy = (
                f"Remove it: uv pip uninstall --python {folder} {_OURS}. A start puts it beside."
            )
            yield warning(f"{_OURS} is installed in {folder}", remedy)
    pairs = ((folder, [*changes(names, locked)]) for folder, names in installed.items())
    changed = {folder: packages for folder, packages in pairs if packages}
    if not changed:
        yield ok(f"{len(environments)} environments are as {root / 'uv.lock'} says")
        return
    texts = []
    for folder, packages in changed.items():
        packages.sort(key=lambda change: (not change.vital, change.name.startswith("nvidia")))
        more = f" and {len(packages) - _SHOWN} more" if len(packages) > _SHOWN else ""
        texts.append(f"{folder}: {', '.join(map(str, packages[:_SHOWN]))}{more}")
    vital = any(change.vital for packages in changed.values() for change in packages)
    yield (failure if vital else warning)(f"changed since they were made: {'; '.join(texts)}")


def ray(case: Case) -> Iterator[Finding]:
    """The versions that driver and workers must share."""
    if why := _unused(case):
        yield unchecked(why)
        return
    host = case.once(machine)
    versions = Versions(host.python_info.python, host.python_info.versions["ray"] or "none")
    kinds = f"{versions} in {len(host.workers)} kinds of environments"
    yield from [*mixed_versions(host)] or [ok(kinds)]


def mixed_versions(machine: Machine) -> Iterator[Finding]:
    """Ray refuses a worker whose Python or Ray is not that of the driver."""
    driver = Versions(machine.python_info.python, machine.python_info.versions["ray"] or "none")
    level = machine.environment.get(_MATCH_LEVEL, "patch")
    for worker in sorted(machine.workers, key=str):
        if _comparable(driver, level) != _comparable(worker, level):
            yield failure(
                f"NeMo-RL's driver {machine.python} has {driver}, environments of its workers have "
                f"{worker}, and Ray refuses such a mixture",
                "Take the environments that NeMo-RL's own uv.lock and .python-version make; remove "
                "a worker's that is not such a one, or half made, and NeMo-RL makes it again.",
            )


def _comparable(versions: Versions, level: str) -> tuple[str, str]:
    python = versions.python.rpartition(".")[0] if level == "minor" else versions.python
    return python, versions.ray


# --- GPUs and memory, of either engine ----------------------------------------------------------


def torch(case: Case) -> Iterator[Finding]:
    """The torch that trains against the driver."""
    nvidia = case.once(driver)
    if not case.on_nemo_rl:
        yield local_torch(case)
        return
    host = case.once(machine)
    folders = host.python.parents[1].glob("lib/python3*/site-packages")
    build = next((build for folder in folders if (build := torch_build(folder))), None)
    yield torch_and_driver(nvidia, build, case.environment, lambda: host.python_info.gpus)


def gpus(case: Case) -> Iterator[Finding]:
    """The GPU of the local engine, those of the Ray cluster, or of the one to be started here."""
    nvidia = case.once(driver)
    if not case.on_nemo_rl:
        yield local_gpus(case)
        return
    host, config = case.once(machine), case.config
    here_gpus = nvidia.gpus if nvidia else ()
    doubts = [doubt for doubt in (in_use(here_gpus), bfloat16(here_gpus, config)) if doubt]
    cluster = host.python_info.cluster
    where = f"nodes of the Ray cluster have {', '.join(map(str, cluster))}" if cluster else "here"
    fine = ok(f"{host.python_info.gpus} {where}")
    yield from [*too_few_gpus(config, host)] or doubts or [fine]


def too_few_gpus(config: Config, machine: Machine) -> Iterator[Finding]:
    """Of a running Ray cluster every node counts, of a Ray still to be started this machine."""
    needs = f"this configuration runs on NeMo-RL and {describe_cluster(config)}, and"
    cluster, info = config.cluster, machine.python_info
    if info.problem:
        yield failure(f"{needs} the Ray cluster cannot be joined: {info.problem}", _START_RAY)
    elif info.cluster is not None:
        able = sum(gpus >= cluster.gpus_per_node for gpus in info.cluster)
        if able < cluster.num_nodes:
            has = ", ".join(str(gpus) for gpus in info.cluster)
            yield failure(f"{needs} the nodes of the running Ray cluster have {has}", _START_RAY)
    elif cluster.num_nodes > 1:
        yield failure(
            f"{needs} no Ray cluster is running here: NeMo-RL would start one of this machine "
            "alone and wait for the others",
            _START_RAY,
        )
    elif info.gpus < cluster.gpus_per_node:
        yield failure(f"{needs} this machine has {info.gpus}", smaller(config))


def memory(case: Case) -> Iterator[Finding]:
    """The memory of GPUs and hosts; NeMo-RL's is an estimate."""
    nvidia = case.once(driver)
    if not case.on_nemo_rl:
        yield local_memory(case)
        return
    yield from nemo_rl_memory(nvidia, case.config)
    yield from host_memory(case.config, ram_bytes())


# --- the nodes ----------------------------------------------------------------------------------


def shared_folders(case: Case) -> Iterator[Finding]:
    """Whether every node sees the folders of this one."""
    if not case.on_nemo_rl:
        yield ok("the local engine runs on one node")
        return
    host, nodes = case.once(machine), case.config.cluster.num_nodes
    yield from (warning(text) for text in repeated_downloads(case.config, case.environment))
    if not case.thorough:
        return
    folders = list(dict.fromkeys(map(existing, written_folders(case))))
    if host.python_info.cluster is not None:
        yield seen_by_nodes(unseen_by_ray(host.python, folders), folders)
    else:
        yield in_slurm(case.environment, folders, nodes)


def repeated_downloads(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Warn of what is hardly meant."""
    if config.cluster.num_nodes > 1 and not environment.get("HF_HOME"):
        yield (
            "HF_HOME is not set: every node downloads the model for itself; set it to a folder "
            "that all nodes see"
        )


def in_slurm(environment: Mapping[str, str], folders: Sequence[Path], num_nodes: int) -> Finding:
    """Check the shared folders of a Slurm job, where no Ray cluster is joined."""
    nodes = slurm_nodes(environment)
    if nodes > 1 and (srun := which("srun")):
        return seen_by_nodes(unseen_by_slurm(srun, nodes, folders), folders)
    if num_nodes == 1:
        return ok("one node, which has its own")
    why = "this process is in no Slurm job of several nodes, and no Ray cluster runs here"
    return unchecked(f"{why}: look again inside the job")


def seen_by_nodes(unseen: Unseen, folders: Sequence[Path]) -> Finding:
    """Report what the nodes answered."""
    blind = [f"{node} does not see {_list(lacks)}" for node, lacks in unseen.items() if lacks]
    return failure("; ".join(blind)) if blind else ok(f"{len(unseen)} nodes see {_list(folders)}")


def _list(folders: Iterable[Path]) -> str:
    return ", ".join(map(str, folders))
