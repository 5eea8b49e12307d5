"""This machine, or the cluster that a run is for: GPUs, memory, folders, disks, and NeMo-RL."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from huggingface_hub.constants import HF_HUB_CACHE

from equipoise.commands.doctor.checks import (
    NVIDIA_SMI,
    Case,
    Finding,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.load import count_gpus
from equipoise.config.memory import local_bytes, memory_of, trained_parameters
from equipoise.config.nemo_rl_rules import memory_problems, memory_warnings
from equipoise.files.disk import GB, in_gb
from equipoise.files.errors import EquipoiseError
from equipoise.files.model_shape import ModelShape, model_shape
from equipoise.files.nemo_rl import (
    CONVERSIONS_VARIABLE,
    RELEASE,
    TRIED,
    Installation,
    broken_conversion,
    conversion_of,
    conversions,
    find_installation,
    find_python,
    is_tried,
)
from equipoise.files.packaged_models import SMOLLM2

_NO_GPU = (
    "equipoise.device is cuda, and torch finds no GPU",
    "Take --device cpu, or a machine with a GPU: see whether nvidia-smi shows one, this torch was "
    "built for it, and CUDA_VISIBLE_DEVICES hides none.",
)
#: Ray's object store and everything else need the rest of a host's memory.
_TIGHT_HOST = 0.7


# --- the local engine ---------------------------------------------------------------------------


def local_gpus(case: Case) -> Iterator[Finding]:
    """The GPU of the local engine, which can also run without one."""
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
    """Raise `EquipoiseError` if a GPU is requested and torch finds none."""
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


def folders(case: Case) -> Iterator[Finding]:
    """Check that the run can write to its folders, and that they have room."""
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
    if CONVERSIONS_VARIABLE in written:
        broken = broken_conversion(conversion_of(config.policy.model_name, environment))
        if broken:
            yield failure(broken.message, broken.remedy)
    yield room(case, next(iter(written.values())))


def _needed_at_all(config: Config, shape: ModelShape) -> float:
    """Bound what a run writes: its folder, the model's copy in the hub's cache, Megatron's form.

    Trained weights count, so a LoRA's checkpoints are small. Both forms of the model are bfloat16.
    """
    checkpoints = (config.checkpointing.keep_top_k or 1) + 2  # one being written, the final one
    run = _RUN_BYTES + _CHECKPOINT_BYTES * trained_parameters(config, shape) * checkpoints
    return run + 2 * shape.parameters * (2 if config.policy.converts else 1)


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
            written[CONVERSIONS_VARIABLE] = conversions(environment)
    return written


def refusal(folder: Path) -> str | None:
    """Try to write a few bytes there, or where it will be made; say why that fails, else None."""
    try:
        with TemporaryFile(dir=existing(folder)) as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror or error}"
    return None


def room(case: Case, runs: Path) -> Finding:
    """Compare the free space of each disk with what the run writes to it."""
    free, shape = shutil.disk_usage(existing(runs)).free, model_shape(case.config.policy.model_name)
    if shape is None:
        least = _RUN_BYTES if case.config.policy.model_name != LOCAL_MODEL else _RUN_BYTES / 5
        says = f"{runs}: {in_gb(free, 1)} free, at least {in_gb(least, 1)} needed"
        return ok(says) if free > least else failure(says)
    needed = _needed_at_all(case.config, shape)
    says = f"{runs}: {in_gb(free)} free; run, model and conversion take about {in_gb(needed)}"
    return ok(says) if free > needed else warning(says)


def existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


# --- NeMo-RL --------------------------------------------------------------------------------------

_MAKE_IMAGE = "docs/cluster.md has the commands that make one; name it by its whole path."
#: What helps where no NeMo-RL can be used.
REMEDY = f"Start it in NeMo-RL's container, or set NEMO_RL_PATH to a checkout of {RELEASE}."
_ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"


def installation(case: Case) -> Installation:
    """Find the NeMo-RL of this run. Raises `EquipoiseError`, which says what to run without one."""
    try:
        return find_installation()
    except EquipoiseError as error:
        machines = case.config.cluster.machines
        raise EquipoiseError(
            error.code,
            f"this configuration runs on NeMo-RL and {machines}, and {error.message}",
            f"{error.remedy} {smaller(case.config)}",
        ) from None


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
        image = Path(case.job.container)
        if image.suffix in (".sif", ".sqsh") and not image.is_file():
            yield failure(f"EQUIPOISE_CONTAINER is {image}, which does not exist", _MAKE_IMAGE)
        else:
            yield ok(f"that of {image}, which is not looked into")
        return
    release = installation(case)
    if not is_tried(release.version):
        yield warning(
            f"Equipoise was not tried with NeMo-RL {release.version}, which has what is assumed",
            f"Tried were {' and '.join(TRIED)}.",
        )
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
    """The GPU of the local engine, or those that NeMo-RL finds here.

    In a Ray cluster it counts them itself when it starts, and says what is missing.
    """
    if case.place != "here":
        yield unchecked(f"{case.config.cluster.machines} are not of this machine")
    elif not case.on_nemo_rl:
        yield from local_gpus(case)
    elif case.config.cluster.num_nodes > 1 or case.environment.get("RAY_ADDRESS"):
        yield unchecked(f"{case.config.cluster.machines} of the Ray cluster: NeMo-RL counts them")
    elif (visible := count_gpus()) < case.config.cluster.gpus_per_node:
        needs = f"this configuration runs on NeMo-RL and {case.config.cluster.machines}"
        yield failure(f"{needs}, and this machine has {visible}", smaller(case.config))
    else:
        yield ok(f"{visible} here")


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
