"""Folders that a run writes to, the disks below them, shared memory, ports."""

import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile

from huggingface_hub.constants import HF_HUB_CACHE

from data_prep.packaged_models import SMOLLM2, SMOLLM2_BYTES, smollm2_folder
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.disk import converted_bytes, download_bytes, run_bytes
from equipoise.config.memory import GB
from equipoise.config.models import model_shape
from equipoise.doctor.checks import (
    CACHES,
    DISK,
    PORTS,
    RUN_DIRECTORY,
    SHARED_MEMORY,
    Result,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.installation.overlay import FOLDER_VARIABLE
from equipoise.models.hub import in_cache
from equipoise.run.directory import NewRun, model_label

#: Enough to show that a quota or a full disk refuses.
_TRIAL_BYTES = 4096
_SHM = Path("/dev/shm")  # noqa: S108
#: What Docker gives a container by default is 64 MB.
_LEAST_SHM = GB
#: The share of memory that Ray's object store takes of /dev/shm, and its limit.
_OBJECT_STORE, _LARGEST_STORE = 0.3, 200 * GB
#: NeMo-RL's ray.sub: variable -> default port of the head node.
_RAY_SUB = {"PORT": 9900, "RAY_CLIENT_SERVER_PORT": 9901, "DASHBOARD_PORT": 8265}
_MEGATRON = "NRL_MEGATRON_CHECKPOINT_DIR"
_OF_NEMO_RL = (_MEGATRON, "NEMO_RL_VENV_DIR", FOLDER_VARIABLE)

Free = Callable[[Path], int]


def run_folder(config: Config) -> Path:
    """Return the folder of the task's runs."""
    return Path(config.equipoise.output_dir) / config.equipoise.task


def cache_folders(config: Config, engine: str, environment: Mapping[str, str]) -> dict[str, Path]:
    """Map what sets a folder that a run writes to -> the folder."""
    folders = {"equipoise.cache_dir": Path(config.equipoise.cache_dir).expanduser()}
    if config.policy.model_name not in (LOCAL_MODEL, SMOLLM2):
        folders["HF_HOME"] = Path(HF_HUB_CACHE)
    if engine == "nemo_rl":
        set_ = ((name, environment.get(name)) for name in _OF_NEMO_RL)
        folders |= {name: Path(value).expanduser() for name, value in set_ if value}
        if config.policy.megatron_cfg.enabled:
            folders.setdefault(_MEGATRON, _megatron_folder(environment))
    return folders


def _megatron_folder(environment: Mapping[str, str]) -> Path:
    """Return where NeMo-RL puts Megatron's form of models when no variable names the folder."""
    home = environment.get("HF_HOME", "").strip()
    return Path(home or Path.home() / ".cache" / "huggingface").expanduser() / "nemo_rl"


def run_directory(config: Config) -> Iterator[Result]:
    """The folder of the runs, and a name that is free."""
    folder, name = run_folder(config), config.equipoise.run_name
    label = model_label(config.policy.model_name)
    NewRun(folder, name, label, datetime.now().astimezone()).check()
    problem = refusal(folder)
    message = f"{folder} can be written to"
    yield failure(RUN_DIRECTORY, problem) if problem else ok(RUN_DIRECTORY, message)


def caches(folders: Mapping[str, Path]) -> Iterator[Result]:
    """The folders that are kept between runs."""
    refusals = [
        failure(CACHES, problem, f"Choose another folder with {setter}.")
        for setter, folder in folders.items()
        if (problem := refusal(folder))
    ]
    paths = ", ".join(map(str, folders.values()))
    yield from refusals or [ok(CACHES, f"{paths} can be written to")]


def refusal(folder: Path) -> str | None:
    """Why a few bytes cannot be written there, or where it will be made; None where they can."""
    try:
        with TemporaryFile(dir=existing(folder)) as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror or error}"
    return None


def disk(config: Config, folders: Mapping[str, Path], free: Free | None = None) -> Iterator[Result]:
    """Free space against what a run of known shape takes; folders of one disk share it."""
    free = free or free_bytes
    shape = model_shape(config.policy.model_name)
    runs = run_folder(config)
    if shape is None:
        room = free(runs)
        if config.policy.model_name == LOCAL_MODEL or room < GB:
            yield enough({runs: 0.2 * GB}, free)
        else:
            message = f"{room / GB:,.0f} GB are free in {runs}"
            yield unchecked(
                DISK, f"{message}; what the model needs is not known before it is loaded"
            )
        return
    needs: dict[Path, float] = {runs: run_bytes(config, shape)}
    if _MEGATRON in folders and not _is_converted(folders[_MEGATRON], config.policy.model_name):
        needs[folders[_MEGATRON]] = converted_bytes(config, shape)
    if "HF_HOME" in folders and not in_cache(config.policy.model_name):
        is_folder = Path(config.policy.model_name).is_dir()
        needs[folders["HF_HOME"]] = 0 if is_folder else download_bytes(shape)
    if config.policy.model_name == SMOLLM2:
        cache = Path(config.equipoise.cache_dir).expanduser()
        needs[cache] = 0 if smollm2_folder(cache).is_dir() else SMOLLM2_BYTES
    yield enough(needs, free)


def _is_converted(folder: Path, model: str) -> bool:
    """Whether NeMo-RL has made Megatron's form of the model; a folder's has a name of its own."""
    name = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
    return (folder / name / "iter_0000000").is_dir()


def enough(needs: Mapping[Path, float], free: Free) -> Result:
    """Whether each disk has room for all that comes on it; tight is below twice of that."""
    by_disk: dict[int, dict[Path, float]] = {}
    for folder, need in needs.items():
        by_disk.setdefault(existing(folder).stat().st_dev, {})[folder] = need
    lines, worst = [], 2.0
    for folder_needs in by_disk.values():
        first, need = next(iter(folder_needs)), sum(folder_needs.values())
        room = free(first)
        worst = min(worst, room / need if need else 2.0)
        lines.append(f"{first}: {room / GB:,.1f} GB free, about {need / GB:,.1f} GB needed")
    build = failure if worst < 1 else warning if worst < 2 else None
    return build(DISK, "; ".join(lines)) if build else ok(DISK, "; ".join(lines))


def free_bytes(folder: Path) -> int:
    """Return what a user may write there, or into the folder in which it will be made."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """The folder, or the one in which it will be made."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def shared_memory(engine: str, size: int, memory: int) -> Result:
    """`size` is that of /dev/shm, `memory` the machine's, in bytes."""
    message = f"{_SHM} has {size / GB:,.2f} GB"
    if engine != "nemo_rl":
        return ok(SHARED_MEMORY, f"{message}; the local engine needs none")
    if size < _LEAST_SHM:
        return failure(SHARED_MEMORY, f"{message}: too little for NCCL and Ray")
    store = min(_OBJECT_STORE * memory, _LARGEST_STORE)
    if size < store:
        says = (
            f"{message}, and Ray's object store wants {store / GB:,.0f} GB: it would take the disk"
        )
        return warning(SHARED_MEMORY, says)
    return ok(SHARED_MEMORY, message)


def shm_bytes() -> int:
    """The size of /dev/shm; 0 where there is none, as on macOS."""
    return shutil.disk_usage(_SHM).total if _SHM.is_dir() else 0


def ports(engine: str, nodes: int, environment: Mapping[str, str]) -> Result:
    """The ports of a Ray that is still to be started."""
    if engine != "nemo_rl":
        return ok(PORTS, "the local engine opens none")
    if nodes == 1:
        return ok(PORTS, "on one node Ray takes ports that are free")
    if environment.get("RAY_ADDRESS"):
        return unchecked(PORTS, "RAY_ADDRESS names a Ray that runs")
    ray_ports = {name: int(environment.get(name) or port) for name, port in _RAY_SUB.items()}
    if busy := [name for name, port in ray_ports.items() if port in taken(ray_ports.values())]:
        listing = ", ".join(f"{ray_ports[name]} ({name})" for name in busy)
        return failure(PORTS, f"in use, and NeMo-RL's ray.sub needs: {listing}")
    return ok(PORTS, f"free on this node: {', '.join(map(str, ray_ports.values()))}")


def taken(ports: Iterable[int]) -> Sequence[int]:
    """Return those in use now."""
    return [port for port in ports if not _can_listen(port)]


def _can_listen(port: int) -> bool:
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError:
            return False
    return True
