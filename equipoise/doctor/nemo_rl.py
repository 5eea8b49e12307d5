"""NeMo-RL: the installation, its environments, and the GPUs and memory of where it runs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from equipoise.config import Config
from equipoise.config.checks import describe_cluster
from equipoise.config.load import count_gpus
from equipoise.config.memory import memory_of, model_shape
from equipoise.config.nemo_rl.assumptions import OWN_CLUSTER, RELEASE, TRIED, is_tried
from equipoise.config.nemo_rl.installation import Installation, find_installation, find_python
from equipoise.doctor.checks import Case, Finding, Job, failure, ok, unchecked, warning
from equipoise.doctor.machine import (
    existing,
    host_memory,
    local_gpus,
    local_memory,
    nemo_rl_memory,
    ram_bytes,
    smaller,
)
from equipoise.files.disk import in_gb
from equipoise.files.errors import EquipoiseError

_MAKE_IMAGE = "docs/cluster.md has the commands that make one; name it by its whole path."
#: What helps where no NeMo-RL can be used.
REMEDY = f"Start it in NeMo-RL's container, or set NEMO_RL_PATH to a checkout of {RELEASE}."
_ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
_START_RAY = (
    "Start Ray on every node first, and this on one of them; on Slurm "
    "containers/slurm/grpo.sbatch does both."
)
_SECONDS = 180  # the first import of Ray on a slow disk
#: Asked of another process, for Ray's client takes the signals of the one that it is in. NeMo-RL,
#: too, starts a Ray of its own where it cannot connect.
_NODES = """
import json, ray, sys
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except ConnectionError:
    print("[]")
else:
    print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


# --- what is looked at once ---------------------------------------------------------------------


def installation(case: Case) -> Installation:
    """The NeMo-RL that this run can use. Raises `EquipoiseError`."""
    return usable_installation(describe_cluster(case.config), smaller(case.config))


def usable_installation(machines: str, instead: str = "") -> Installation:
    """Find NeMo-RL; say what to run `instead` where there is none.

    Raises `EquipoiseError`.
    """
    try:
        return find_installation()
    except EquipoiseError as error:
        raise EquipoiseError(
            error.code,
            f"this configuration runs on NeMo-RL and {machines}, and {error.message}",
            f"{error.remedy} {instead}".rstrip(),
        ) from None


def cluster(_: Case) -> list[int] | None:
    """GPUs of each node of the Ray that NeMo-RL would join; None where it would start one.

    Raises `EquipoiseError` where there is one that cannot be joined.
    """
    try:  # the address is found as NeMo-RL finds it
        from ray._private.services import get_ray_address_from_environment
        from ray._private.utils import get_ray_address_file

        address = get_ray_address_from_environment("auto", None)
    except (ImportError, ConnectionError):
        return None
    refuse_silence(address, get_ray_address_file(None))
    command = [sys.executable, "-c", _NODES, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise EquipoiseError(
            "nemo-rl.no-ray",
            f"the Ray cluster at {address} cannot be joined: {lines[-1] if lines else 'no answer'}",
            _START_RAY,
        ) from error
    nodes = json.loads(done.stdout.splitlines()[-1])
    is_ours = any(name.startswith(OWN_CLUSTER) for resources in nodes for name in resources)
    if is_ours or not nodes:
        return None
    return [int(resources.get("GPU", 0)) for resources in nodes]


def refuse_silence(address: str, file: str) -> None:
    """Raise `EquipoiseError` where nothing listens there; Ray itself would try for minutes.

    Without RAY_ADDRESS the address is in the `file` that a Ray leaves behind when it is killed.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            named = os.environ.get("RAY_ADDRESS")
            raise EquipoiseError(
                "nemo-rl.no-ray",
                f"the Ray cluster at {address} cannot be joined: nobody answers ({error})",
                "Correct RAY_ADDRESS." if named else f"Remove {file}, which names it.",
            ) from error


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
    python = find_python(release.root)
    lacking = [*read_only_workers(release.root, case.environment)]
    environment = case.job.environment if case.job else case.environment
    if case.config.policy.megatron_cfg.enabled:
        lacking += megatron_needs(case.config, environment)
    if case.config.cluster.num_nodes > 1 and not environment.get("HF_HOME"):
        yield warning(
            "HF_HOME is not set: every node downloads the model for itself",
            "Set it to a folder that all nodes see.",
        )
    yield from lacking or [ok(f"{release.version} at {release.root}, Python {python}")]


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


def read_only_workers(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """NeMo-RL makes its workers' environments, and changes files of vLLM when one starts."""
    folder = Path(environment.get("NEMO_RL_VENV_DIR") or root / "venvs")
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
    if not case.on_nemo_rl:
        yield from local_gpus(case)
        return
    config, visible = case.config, count_gpus()
    nodes = case.once(cluster) if case.purpose != "plan" else None
    where = f"nodes of the Ray cluster have {', '.join(map(str, nodes))}" if nodes else "here"
    yield from [*too_few_gpus(config, nodes, visible)] or [ok(f"{visible} {where}")]


def too_few_gpus(config: Config, nodes: Sequence[int] | None, visible: int) -> Iterator[Finding]:
    """Count every node of a running Ray cluster, or this machine where Ray is still to start."""
    needs = f"this configuration runs on NeMo-RL and {describe_cluster(config)}, and"
    cluster = config.cluster
    if nodes is not None:
        if sum(gpus >= cluster.gpus_per_node for gpus in nodes) < cluster.num_nodes:
            has = ", ".join(map(str, nodes))
            yield failure(f"{needs} the nodes of the running Ray cluster have {has}", _START_RAY)
    elif cluster.num_nodes > 1:
        yield failure(
            f"{needs} no Ray cluster is running here: NeMo-RL would start one of this machine "
            "alone and wait for the others",
            _START_RAY,
        )
    elif visible < cluster.gpus_per_node:
        yield failure(f"{needs} this machine has {visible}", smaller(config))


def memory(case: Case) -> Iterator[Finding]:
    """The memory of GPUs and hosts; NeMo-RL's is an estimate."""
    config = case.config
    if case.place != "here":
        shape = model_shape(config.policy.model_name)
        host = "as much as is needed"
        if shape:
            host = f"at least {in_gb(memory_of(config, shape).host)}"
        limit = config.equipoise.gpu_memory_gb
        size = f"that GPUs have {limit:g} GB" if limit else "how large GPUs are"
        yield unchecked(f"{size}, and a node's host {host}")
    elif case.on_nemo_rl:
        yield from nemo_rl_memory(config)
        yield from host_memory(config, ram_bytes())
    else:
        yield local_memory(case)
