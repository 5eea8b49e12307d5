"""This machine: its Python's packages, NVIDIA's driver, GPUs, memory, folders and disks.

The driver is asked through nvidia-smi, which comes with it and starts no CUDA context.
"""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from huggingface_hub.constants import HF_HUB_CACHE

from data_prep.packaged_models import SMOLLM2, SMOLLM2_BYTES, smollm2_folder
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.load import count_gpus
from equipoise.config.memory import (
    ModelShape,
    local_bytes,
    memory_of,
    model_shape,
    trained_parameters,
)
from equipoise.config.nemo_rl.conversion import (
    VARIABLE,
    broken_conversion,
    conversion_of,
    conversions,
    is_converted,
)
from equipoise.config.nemo_rl.installation import UV_RUN
from equipoise.config.nemo_rl.rules import memory_problems, memory_warnings
from equipoise.doctor.checks import (
    NVIDIA_SMI,
    Case,
    Finding,
    NotCheckedError,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.files.disk import GB, in_gb
from equipoise.files.errors import EquipoiseError
from equipoise.models.hub import in_cache

_NO_GPU = (
    "equipoise.device is cuda, and torch finds no GPU",
    "Take --device cpu, or a machine with a GPU: see whether nvidia-smi shows one and this torch "
    "was built for it.",
)
_COUNT = "import torch; print(torch.cuda.device_count())"
_SECONDS = 60
_DRIVER_SECONDS = 10
_FIELDS = ("index", "name", "memory.total", "memory.used", "driver_version")
_MIB = 2**20
#: What hides GPUs from a process; NVIDIA's containers read the second one.
_HIDING = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: Ray's object store and everything else need the rest of a host's memory.
_TIGHT_HOST = 0.7


# --- packages -----------------------------------------------------------------------------------


def packages(case: Case) -> Iterator[Finding]:
    """Check what this configuration imports besides what every run does."""
    if case.config.equipoise.load_in_4bit and find_spec("bitsandbytes") is None:
        yield failure("equipoise.load_in_4bit needs bitsandbytes, which is not installed")
    else:
        yield ok("those of this configuration are here")


# --- the driver and its GPUs --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver sees it; memory in bytes."""

    index: int
    name: str
    total: int
    used: int


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver."""

    version: str
    gpus: tuple[Gpu, ...]


def driver(case: Case) -> Driver | None:
    """The driver, where GPUs are to be looked at."""
    if not case.gpu:
        raise NotCheckedError("--no-gpu")
    return read_driver()


def read_driver() -> Driver | None:
    """Ask nvidia-smi; None without one. Raises `EquipoiseError` where it fails."""
    program = shutil.which(NVIDIA_SMI)
    if program is None:
        return None
    fields = f"--query-gpu={','.join(_FIELDS)}"
    return parse_driver(_ask(program, fields, "--format=csv,noheader,nounits"))


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stdout", None) or str(error)
        line = (str(output).strip().splitlines() or [type(error).__name__])[0]
        raise EquipoiseError(
            "gpu.failed-driver",
            f"nvidia-smi fails: {line}",
            "Reload the driver or restart the node: kernel module and library must match.",
        ) from error
    return done.stdout


def parse_driver(rows: str) -> Driver:
    """The driver of the rows of `--query-gpu`."""
    cells = [row for row in csv.reader(rows.splitlines(), skipinitialspace=True) if row]
    gpus = tuple(
        Gpu(int(index), name, _bytes(total), _bytes(used)) for index, name, total, used, _ in cells
    )
    return Driver(cells[0][4] if cells else "", gpus)


def _bytes(mib: str) -> int:
    """Memory in MiB; a GPU whose memory is that of the machine says [N/A]."""
    return int(mib) * _MIB if mib.isdigit() else 0


def gpus_of_torch() -> int:
    """How many this Python's torch sees; asked of another process, for the import takes long."""
    failed = "torch cannot be imported"
    output = ask_python(
        _COUNT, seconds=_SECONDS, code="gpu.failed-torch", failed=failed, remedy=UV_RUN
    )
    return int(output.split()[-1])


def ask_python(
    program: str, *words: str, seconds: float, code: str, failed: str, remedy: str
) -> str:
    """Run a program in a Python of its own and return its output. Raises `EquipoiseError`."""
    command = [sys.executable, "-c", program, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except subprocess.SubprocessError as error:
        output = getattr(error, "stderr", None) or str(error)
        line = (str(output).strip().splitlines() or ["no answer"])[-1]
        raise EquipoiseError(code, f"{failed}: {line}", remedy) from error
    return done.stdout


# --- the local engine ---------------------------------------------------------------------------


def local_gpus(case: Case) -> Iterator[Finding]:
    """The GPU of the local engine, which does without."""
    config = case.config if case.loaded else None
    if config and config.equipoise.device == "cuda" and not count_gpus():
        yield failure(*_NO_GPU)
        return
    nvidia = None if case.purpose == "start" else case.once(driver)
    if nvidia is None or not nvidia.gpus:
        yield ok("none; the local engine trains on the CPU")
        return
    gpus = nvidia.gpus
    visible = gpus_of_torch()
    hidden = any(case.environment.get(name) not in (None, "all") for name in _HIDING)
    if visible < len(gpus) and not hidden:
        remedy = f"Take a torch built for the CUDA of the driver {nvidia.version}."
        yield failure(f"torch sees {visible} of {len(gpus)} GPUs, and nothing hides them", remedy)
        return
    names = " and ".join(sorted({f"{gpu.name}, {in_gb(gpu.total)}" for gpu in gpus}))
    yield ok(f"{visible} of {names}")


def refuse_missing_gpu(config: Config) -> None:
    """Raise `EquipoiseError` where a GPU is asked for, and torch finds none."""
    if config.equipoise.device == "cuda" and not count_gpus():
        raise EquipoiseError("gpu.none", *_NO_GPU)


def local_memory(case: Case) -> Finding:
    """The model of the local engine in the memory of its GPU, or of this machine.

    Raises `EquipoiseError` where it cannot be held.
    """
    config, name = case.config, case.config.policy.model_name
    if name == LOCAL_MODEL:
        return ok("the task's own small model is at home everywhere")
    shape = model_shape(name)
    if shape is None:
        return unchecked(f"the shape of {name} is not known before it is loaded")
    has, where = ram_bytes(), "this machine"
    nvidia = case.once(driver) if case.gpu and case.purpose != "start" else None
    if config.equipoise.device == "cpu":
        pass
    elif nvidia and nvidia.gpus and nvidia.gpus[0].total:  # else its memory is the machine's
        has, where = nvidia.gpus[0].total, "the GPU"
    elif case.purpose == "start" and count_gpus():
        import torch

        has, where = int(torch.cuda.get_device_properties(0).total_memory), "the GPU"
    if (needs := local_bytes(config, shape, gpu=where == "the GPU")) > has:
        raise EquipoiseError(
            "gpu.small-memory",
            f"to train {config.policy.model_name} here takes at least {in_gb(needs)} for its "
            f"weights, gradients and optimizer, and {where} has {in_gb(has)}",
            f"Take a smaller model, or a LoRA with --lora-rank. {smaller(config)}",
        )
    return ok(f"weights, gradients and optimizer fit the {in_gb(has)} of {where}")


def smaller(config: Config) -> str:
    """Say what to do where a configuration is too large for what is here, with a command."""
    return (
        "Look at it with --dry-run, try it with --rehearse, or run `uv run "
        f"recipes/grpo_{config.equipoise.task}.py --engine local --config "
        "nemo_configs/local.yaml` (CPU), or with --config nemo_configs/small.yaml (one GPU), "
        "which needs no NeMo-RL."
    )


def ram_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- memory of NeMo-RL's nodes ------------------------------------------------------------------


def host_memory(config: Config, has: int) -> Iterator[Finding]:
    """Compare what NeMo-RL's workers keep on a node's host with the `has` bytes of this one."""
    shape = model_shape(config.policy.model_name)
    if shape is None:
        return
    needs = memory_of(config, shape).host
    message = f"a node's host holds {in_gb(needs)} at least, this one has {in_gb(has)}"
    if needs <= _TIGHT_HOST * has:
        yield ok(message)
        return
    remedy = "Take nodes with more memory, or split the model over the GPUs of more nodes."
    yield (failure if needs > has else warning)(message, remedy)


def nemo_rl_memory(driver: Driver | None, config: Config) -> Iterator[Finding]:
    """The estimate of `--dry-run` against the GPUs that are here."""
    if driver is None or not driver.gpus:
        yield unchecked("no GPU is here to compare the estimate with")
        return
    smallest = min(gpu.total for gpu in driver.gpus) / GB
    if not smallest:
        yield unchecked("the driver does not say how much memory a GPU has")
        return
    ours = config.equipoise.model_copy(update={"gpu_memory_gb": round(smallest, 1)})
    local_config = config.model_copy(update={"equipoise": ours})
    problems = [failure(problem.message) for problem in memory_problems(local_config)]
    tight = [warning(text) for text in memory_warnings(local_config)]
    yield from problems or tight or [ok(f"the estimate fits GPUs of {smallest:.0f} GB")]


# --- folders and disks --------------------------------------------------------------------------

#: Enough to show that a quota or a full disk refuses.
_TRIAL_BYTES = 4096
_HUB = "HF_HOME"
#: Of a checkpoint, per trained parameter: float32 weights and AdamW's two moments.
_CHECKPOINT_BYTES = 12
#: Rollouts, report, log, history; of a run of the shipped sizes it is less.
_RUN_BYTES = GB

Free = Callable[[Path], int]


def folders(case: Case) -> Iterator[Finding]:
    """Check that what the run writes to can be written to, and has the room."""
    config, shape = case.config, model_shape(case.config.policy.model_name)
    if case.place == "elsewhere":
        size = "not known" if shape is None else in_gb(_needed_at_all(config, shape))
        yield unchecked(f"disks are those of another machine; a run needs about {size} there")
        return
    written = written_folders(case)
    environment = case.job.environment if case.job else case.environment
    for setter, folder in written.items():
        if problem := refusal(folder):
            yield failure(problem, f"Choose another folder with {setter}.")
    if VARIABLE in written:
        broken = broken_conversion(conversion_of(config.policy.model_name, environment))
        if broken:
            yield failure(broken.message, broken.remedy)
    yield room_for(case, written, free_bytes)


def _needed_at_all(config: Config, shape: ModelShape) -> float:
    return _run_bytes(config, shape) + _model_bytes(shape) + _converted_bytes(config, shape)


def _run_bytes(config: Config, shape: ModelShape) -> float:
    """Bound the size of a run directory: the checkpoints kept, one being written, the final one.

    Trained weights count, so a LoRA's checkpoints are small.
    """
    checkpoints = (config.checkpointing.keep_top_k or 1) + 2
    return _RUN_BYTES + _CHECKPOINT_BYTES * trained_parameters(config, shape) * checkpoints


def _model_bytes(shape: ModelShape) -> float:
    """Size a model in the Hub's cache, in bfloat16 as most are published."""
    return 2 * shape.parameters


def _converted_bytes(config: Config, shape: ModelShape) -> float:
    """Size the bfloat16 copy in Megatron's form that NeMo-RL makes of a model once."""
    policy = config.policy
    converts = policy.megatron_cfg.enabled and policy.pretrained_checkpoint is None
    return _model_bytes(shape) if converts else 0


def written_folders(case: Case) -> dict[str, Path]:
    """Map what sets a folder that the run writes to -> the folder; the first holds the runs."""
    config, job = case.config, case.job
    output = job.output if job else Path(config.equipoise.output_dir)
    cache = job.shared / "cache" if job else Path(config.equipoise.cache_dir).expanduser()
    runs = output / config.equipoise.task
    written = {"EQUIPOISE_OUTPUT": runs, "EQUIPOISE_SHARED": cache}
    if not job:
        written = {"--output-dir": runs, "equipoise.cache_dir": cache}
    if config.policy.model_name not in (LOCAL_MODEL, SMOLLM2):
        written[_HUB] = job.hub if job else Path(HF_HUB_CACHE)
    if case.on_nemo_rl:
        environment = job.environment if job else case.environment
        for name in ("NEMO_RL_VENV_DIR", "EQUIPOISE_OVERLAY_DIR"):
            if value := environment.get(name):
                written[name] = Path(value).expanduser()
        if config.policy.megatron_cfg.enabled:  # where NeMo-RL puts Megatron's form of models
            written[VARIABLE] = conversions(environment)
    return written


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


def room_for(case: Case, written: Mapping[str, Path], free: Free) -> Finding:
    """Compare what is `free` with what the run writes; folders of one disk share it."""
    runs, cache = list(written.values())[:2]
    config, model = case.config, case.config.policy.model_name
    environment = case.job.environment if case.job else case.environment
    shape = model_shape(model)
    if shape is None:
        room = free(runs)
        if model == LOCAL_MODEL or room < GB:
            return enough({runs: 0.2 * GB}, free)
        message = f"{in_gb(room)} are free in {runs}"
        return unchecked(f"{message}; what the model needs is not known before it is loaded")
    needs: dict[Path, float] = {runs: _run_bytes(config, shape)}
    if VARIABLE in written and not is_converted(conversion_of(model, environment)):
        needs[written[VARIABLE]] = _converted_bytes(config, shape)
    if _HUB in written:
        has = Path(model).is_dir() or in_cache(model, written[_HUB])
        needs[written[_HUB]] = 0 if has else _model_bytes(shape)
    if model == SMOLLM2:
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
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
