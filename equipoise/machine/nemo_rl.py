"""NeMo-RL: the installation, its environments, and the GPUs and memory of where it runs."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from equipoise.config import Config
from equipoise.config.checks import describe_cluster
from equipoise.config.memory import host_bytes, in_gb
from equipoise.config.models import model_shape
from equipoise.config.nemo_rl.assumptions import RELEASE, TRIED, is_tried
from equipoise.config.nemo_rl.installation import Installation, find_installation, needs_of
from equipoise.errors import EquipoiseError
from equipoise.machine.checks import Case, Finding, Job, failure, ok, unchecked, warning
from equipoise.machine.overlay import NEEDED
from equipoise.machine.python import Machine, look_at_machine, workers_folder
from equipoise.machine.software import (
    bfloat16,
    driver,
    host_memory,
    in_use,
    local_gpus,
    local_memory,
    nemo_rl_memory,
    ram_bytes,
    smaller,
)
from equipoise.machine.storage import existing

_MAKE_IMAGE = "docs/cluster.md has the commands that make one; name it by its whole path."
#: What helps where no NeMo-RL can be used.
REMEDY = f"Start it in NeMo-RL's container, or set NEMO_RL_PATH to a checkout of {RELEASE}."
_ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
_START_RAY = (
    "Start Ray on every node first, and this on one of them; on Slurm "
    "containers/slurm/grpo.sbatch does both."
)


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


# --- the installation ---------------------------------------------------------------------------


def nemo_rl(case: Case) -> Iterator[Finding]:
    """NeMo-RL, its driver's Python, and what its workers need."""
    if not case.on_nemo_rl:
        needless = ok("not needed: the local engine trains this")
        yield needless if case.loaded else unchecked(case.without_run)
        return
    if case.place == "elsewhere":
        yield unchecked("it is that of another machine")
        return
    if case.job and case.job.container:
        yield from image(case.job)
        return
    release = case.once(installation)
    yield from untried(release)
    if case.purpose == "plan":
        yield ok(f"{release.version} at {release.root}")
        return
    host = case.once(machine)
    lacking = [*missing_packages(host), *read_only_workers(host)]
    environment = case.job.environment if case.job else case.environment
    if case.config.policy.megatron_cfg.enabled:
        lacking += megatron_needs(case.config, environment)
    if case.config.cluster.num_nodes > 1 and not environment.get("HF_HOME"):
        yield warning(
            "HF_HOME is not set: every node downloads the model for itself",
            "Set it to a folder that all nodes see.",
        )
    yield from lacking or [ok(f"{release.version} at {release.root}, Python {host.python}")]


def image(job: Job) -> Iterator[Finding]:
    """The image that a job runs in; what is in it is not looked at."""
    path = Path(job.container)
    if path.suffix in (".sif", ".sqsh") and not path.is_file():
        yield failure(f"EQUIPOISE_CONTAINER is {path}, and there is no such file", _MAKE_IMAGE)
    else:
        yield ok(f"that of {job.container}, which is not looked into")


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


# --- GPUs and memory, of either engine ----------------------------------------------------------


def gpus(case: Case) -> Iterator[Finding]:
    """The GPU of the local engine, those of the Ray cluster, or of the one to be started here."""
    if case.place != "here":
        yield unchecked(f"{describe_cluster(case.config)} are not of this machine")
        return
    nvidia = case.once(driver)
    if not case.on_nemo_rl:
        yield from local_gpus(case)
        return
    config, here_gpus = case.config, nvidia.gpus if nvidia else ()
    yield from filter(None, (in_use(here_gpus), bfloat16(here_gpus, config)))
    if case.purpose == "plan":
        if len(here_gpus) < config.cluster.gpus_per_node:
            needs = f"this configuration runs on {describe_cluster(config)}"
            yield failure(f"{needs}, and this machine has {len(here_gpus)}", smaller(config))
        return
    host = case.once(machine)
    cluster = host.python_info.cluster
    where = f"nodes of the Ray cluster have {', '.join(map(str, cluster))}" if cluster else "here"
    yield from [*too_few_gpus(config, host)] or [ok(f"{host.python_info.gpus} {where}")]


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
    config = case.config
    if case.place != "here":
        shape = model_shape(config.policy.model_name)
        host = f"at least {in_gb(host_bytes(config, shape))}" if shape else "as much as is needed"
        limit = config.equipoise.gpu_memory_gb
        size = f"that GPUs have {limit:g} GB" if limit else "how large GPUs are"
        yield unchecked(f"{size}, and a node's host {host}")
    elif case.on_nemo_rl:
        yield from nemo_rl_memory(case.once(driver), config)
        yield from host_memory(config, ram_bytes())
    else:
        yield local_memory(case)
