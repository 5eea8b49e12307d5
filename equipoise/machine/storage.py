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
from equipoise.config.memory import GB, converted_bytes, download_bytes, in_gb, run_bytes
from equipoise.config.models import model_shape
from equipoise.machine.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.machine.overlay import FOLDER_VARIABLE
from equipoise.machine.software import ram_bytes
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
        if config.policy.megatron_cfg.enabled:  # where NeMo-RL puts Megatron's form of models
            home = environment.get("HF_HOME", "").strip() or Path.home() / ".cache" / "huggingface"
            folders.setdefault(_MEGATRON, Path(home).expanduser() / "nemo_rl")
    return folders


def written_folders(case: Case) -> list[Path]:
    """List the folders that the run writes to."""
    return [run_folder(case.config), *_caches(case).values()]


def _caches(case: Case) -> dict[str, Path]:
    engine = "nemo_rl" if case.on_nemo_rl else "local"
    return cache_folders(case.config, engine, case.environment)


def run_directory(case: Case) -> Iterator[Finding]:
    """The folder of the runs, and a name that is free."""
    config = case.config
    folder, name = run_folder(config), config.equipoise.run_name
    label = model_label(config.policy.model_name)
    NewRun(folder, name, label, datetime.now().astimezone()).check()
    problem = refusal(folder)
    message = f"{folder} can be written to"
    yield failure(problem) if problem else ok(message)


def caches(case: Case) -> Iterator[Finding]:
    """The folders that are kept between runs."""
    folders = _caches(case)
    refusals = [
        failure(problem, f"Choose another folder with {setter}.")
        for setter, folder in folders.items()
        if (problem := refusal(folder))
    ]
    paths = ", ".join(map(str, folders.values()))
    yield from refusals or [ok(f"{paths} can be written to")]


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


def disk(case: Case) -> Iterator[Finding]:
    """Free space against what a run of known shape takes; folders of one disk share it."""
    yield room_for(case.config, _caches(case), free_bytes)


def room_for(config: Config, folders: Mapping[str, Path], free: Free) -> Finding:
    """Compare what is `free` with what the run writes to its folder and to these."""
    shape = model_shape(config.policy.model_name)
    runs = run_folder(config)
    if shape is None:
        room = free(runs)
        if config.policy.model_name == LOCAL_MODEL or room < GB:
            return enough({runs: 0.2 * GB}, free)
        message = f"{in_gb(room)} are free in {runs}"
        return unchecked(f"{message}; what the model needs is not known before it is loaded")
    needs: dict[Path, float] = {runs: run_bytes(config, shape)}
    model = config.policy.model_name
    # NeMo-RL's form of a folder's model has a name of its own.
    converted = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
    if folder := folders.get(_MEGATRON):
        is_converted = (folder / converted / "iter_0000000").is_dir()
        needs |= {} if is_converted else {folder: converted_bytes(config, shape)}
    if "HF_HOME" in folders and not in_cache(config.policy.model_name):
        is_folder = Path(config.policy.model_name).is_dir()
        needs[folders["HF_HOME"]] = 0 if is_folder else download_bytes(shape)
    if config.policy.model_name == SMOLLM2:
        cache = Path(config.equipoise.cache_dir).expanduser()
        needs[cache] = 0 if smollm2_folder(cache).is_dir() else SMOLLM2_BYTES
    return enough(needs, free)


def enough(needs: Mapping[Path, float], free: Free) -> Finding:
    """Whether each disk has room for all that comes on it; tight is below twice of that."""
    by_disk: dict[int, dict[Path, float]] = {}
    for folder, need in needs.items():
        by_disk.setdefault(existing(folder).stat().st_dev, {})[folder] = need
    lines, worst = [], 2.0
    for folder_needs in by_disk.values():
        first, need = next(iter(folder_needs)), sum(folder_needs.values())
        room = free(first)
        worst = min(worst, room / need if need else 2.0)
        lines.append(f"{first}: {in_gb(room, 1)} free, about {in_gb(need, 1)} needed")
    build = failure if worst < 1 else warning if worst < 2 else None
    return build("; ".join(lines)) if build else ok("; ".join(lines))


def free_bytes(folder: Path) -> int:
    """Return what a user may write there, or into the folder in which it will be made."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """The folder, or the one in which it will be made."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def shared_memory(case: Case) -> Iterator[Finding]:
    """The folder in memory that Ray and NCCL share."""
    size = shutil.disk_usage(_SHM).total if _SHM.is_dir() else 0  # there is none on macOS
    if case.on_nemo_rl:
        yield shared_memory_for(size, ram_bytes())
    else:
        yield ok(f"{_SHM} has {in_gb(size, 2)}; the local engine needs none")


def shared_memory_for(size: int, memory: int) -> Finding:
    """Compare the bytes of /dev/shm with what Ray takes of a machine with so much `memory`."""
    message = f"{_SHM} has {in_gb(size, 2)}"
    if size < _LEAST_SHM:
        return failure(f"{message}: too little for NCCL and Ray")
    store = min(_OBJECT_STORE * memory, _LARGEST_STORE)
    if size < store:
        wants = f"Ray's object store wants {in_gb(store)}: it would take the disk"
        return warning(f"{message}, and {wants}")
    return ok(message)


def ports(case: Case) -> Iterator[Finding]:
    """The ports of a Ray that is still to be started."""
    if not case.on_nemo_rl:
        yield ok("the local engine opens none")
    elif case.config.cluster.num_nodes == 1:
        yield ok("on one node Ray takes ports that are free")
    else:
        yield ray_ports(case.environment)


def ray_ports(environment: Mapping[str, str]) -> Finding:
    """The ports that NeMo-RL's ray.sub gives the head node."""
    if environment.get("RAY_ADDRESS"):
        return unchecked("RAY_ADDRESS names a Ray that runs")
    ports = {name: int(environment.get(name) or port) for name, port in _RAY_SUB.items()}
    if busy := [name for name, port in ports.items() if port in taken(ports.values())]:
        listing = ", ".join(f"{ports[name]} ({name})" for name in busy)
        return failure(f"in use, and NeMo-RL's ray.sub needs: {listing}")
    return ok(f"free on this node: {', '.join(map(str, ports.values()))}")


def taken(ports: Iterable[int]) -> Sequence[int]:
    """Return those in use now."""
    in_use = []
    for port in ports:
        with closing(socket.socket()) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
                listener.listen()
            except OSError:
                in_use.append(port)
    return in_use
