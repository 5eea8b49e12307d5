"""This machine: its GPUs, memory, folders and disks."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from huggingface_hub.constants import HF_HUB_CACHE

from data_prep.packaged_models import SMOLLM2
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
from equipoise.config.nemo_rl.rules import memory_problems, memory_warnings
from equipoise.doctor.checks import (
    NVIDIA_SMI,
    Case,
    Finding,
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
    "Take --device cpu, or a machine with a GPU: see whether nvidia-smi shows one, this torch was "
    "built for it, and CUDA_VISIBLE_DEVICES hides none.",
)
#: Ray's object store and everything else need the rest of a host's memory.
_TIGHT_HOST = 0.7


# --- the local engine ---------------------------------------------------------------------------


def local_gpus(case: Case) -> Iterator[Finding]:
    """The GPU of the local engine, which does without."""
    gpus = count_gpus()
    if gpus:
        yield ok(f"{gpus}, of {in_gb(min(gpu_memory()))}" if case.purpose != "start" else str(gpus))
    elif case.loaded and case.config.equipoise.device == "cuda":
        yield failure(*_NO_GPU)
    elif shutil.which(NVIDIA_SMI):
        yield warning("nvidia-smi is here, and torch sees no GPU", _NO_GPU[1])
    else:
        yield ok("none; the local engine trains on the CPU")


def gpu_memory() -> list[int]:
    """Return the bytes of each GPU."""
    import torch  # it takes seconds

    return [torch.cuda.get_device_properties(n).total_memory for n in range(count_gpus())]


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
    if config.equipoise.device != "cpu" and count_gpus():
        has, where = gpu_memory()[0], "the GPU"
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


def nemo_rl_memory(config: Config) -> Iterator[Finding]:
    """The estimate of `--dry-run` against the GPUs that are here."""
    if not count_gpus():
        yield unchecked("no GPU is here to compare the estimate with")
        return
    smallest = min(gpu_memory()) / GB
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
    runs = next(iter(written.values()))
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
