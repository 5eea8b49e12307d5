"""This Python, torch and the driver, the GPUs and their memory."""

import platform
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.engine import ram_bytes, refuse_model_above
from equipoise.config.memory import GB, host_bytes
from equipoise.config.models import model_shape
from equipoise.config.nemo_rl_checks import memory_problems, nemo_rl_warnings
from equipoise.doctor.checks import (
    GPUS,
    MEMORY,
    PYTHON,
    TORCH,
    Result,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.errors import EquipoiseError
from equipoise.installation.gpus import (
    Driver,
    Gpu,
    TorchBuild,
    hidden_by,
    mismatch,
    read_driver,
    torch_build,
)
from equipoise.installation.requirements import installed_version, requirements, unmet

_COUNT = "import torch; print(torch.cuda.device_count())"
_SECONDS = 60
_BFLOAT16_CAPABILITY = 8.0
#: A GPU of which others use more is hardly free.
_USED = 0.1
#: Ray's object store and everything else need the rest of a host's memory.
_TIGHT_HOST = 0.7


def python(
    list_requirements: Callable[[], list[str] | None] = requirements,
    version_of: Callable[[str], str | None] = installed_version,
) -> Iterator[Result]:
    """This Python and its packages."""
    version = f"{platform.python_version()} at {sys.prefix}"
    specifiers = list_requirements()
    if specifiers is None:
        says = f"{version}; Equipoise is not installed as a package, so no version is compared"
        yield ok(PYTHON, says)
    elif missing := list(unmet(specifiers, version_of)):
        yield failure(PYTHON, f"{version}: {'; '.join(missing)}")
    else:
        yield ok(PYTHON, f"{version}; all {len(specifiers)} packages have the versions asked for")


def local_gpus(config: Config | None, environment: Mapping[str, str]) -> Iterator[Result]:
    """Driver, torch, GPU and memory of the local engine."""
    driver = read_driver()
    build = torch_build(Path(sysconfig.get_path("purelib")))
    yield torch_and_driver(driver, build, environment, gpus_of_torch)
    yield local_gpu(driver, config)
    if config:
        yield local_memory(config, driver.gpus if driver else ())


def torch_and_driver(
    driver: Driver | None,
    build: TorchBuild | None,
    environment: Mapping[str, str],
    count_gpus: Callable[[], int],
) -> Result:
    """Whether that torch can use the GPUs; `count_gpus` counts those that it sees."""
    if build is None:
        return failure(TORCH, "there is no torch", PYTHON.remedy)
    if driver is None or not driver.gpus:
        return ok(TORCH, f"torch {build.version}; no NVIDIA driver with a GPU, so the CPU is used")
    if problem := mismatch(driver, build):
        return failure(TORCH, problem)
    count = count_gpus()
    if count < len(driver.gpus):
        hiding = hidden_by(environment)
        says = f"torch sees {count} of {len(driver.gpus)} GPUs; {hiding or 'nothing hides them'}"
        if hiding:
            return warning(TORCH, says, "Unset the variable where the run should have them all.")
        return failure(TORCH, says)
    built = f"torch {build.version} for CUDA {build.cuda}"
    return ok(TORCH, f"{built}, driver {driver.version} for CUDA {driver.cuda or 'unknown'}")


def gpus_of_torch() -> int:
    """How many this Python's torch sees; asked of another process, for the import takes long."""
    command = [sys.executable, "-c", _COUNT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        output = getattr(error, "stderr", None) or str(error)
        line = (str(output).strip().splitlines() or ["no answer"])[-1]
        raise EquipoiseError(f"torch cannot be imported: {line}", PYTHON.remedy) from error
    return int(done.stdout.split()[-1])


def local_gpu(driver: Driver | None, config: Config | None) -> Result:
    """The GPU of the local engine, which does without."""
    gpus = driver.gpus if driver else ()
    if not gpus:
        if config and config.equipoise.device == "cuda":
            message = "equipoise.device is cuda, and there is no GPU"
            return failure(GPUS, message, "Take --device cpu, or a machine with a GPU.")
        return ok(GPUS, "none; the local engine trains on the CPU")
    return used(gpus) or bfloat16(gpus, config) or ok(GPUS, describe(gpus))


def describe(gpus: tuple[Gpu, ...]) -> str:
    """How many of which kind."""
    names = {f"{gpu.name}, {gpu.total / GB:.0f} GB" for gpu in gpus}
    return f"{len(gpus)} of {' and '.join(sorted(names))}"


def used(gpus: tuple[Gpu, ...]) -> Result | None:
    """Warn of GPUs already in use."""
    busy = [gpu for gpu in gpus if gpu.used > _USED * gpu.total]
    if not busy:
        return None
    usage = ", ".join(
        f"GPU {gpu.index} {gpu.used / GB:.0f} of {gpu.total / GB:.0f} GB" for gpu in busy
    )
    remedy = "End what uses it (nvidia-smi shows it), or choose others with CUDA_VISIBLE_DEVICES."
    return warning(GPUS, f"memory is in use: {usage}", remedy)


def bfloat16(gpus: tuple[Gpu, ...], config: Config | None) -> Result | None:
    """GPUs before Ampere, which compute in bfloat16 slowly or not at all."""
    unsupported = [gpu for gpu in gpus if _capability(gpu) < _BFLOAT16_CAPABILITY]
    if config is None or config.policy.precision != "bfloat16" or not unsupported:
        return None
    message = f"policy.precision is bfloat16, and the {unsupported[0].name} has no support for it"
    return warning(GPUS, message, "Take a GPU of Ampere or later, or policy.precision=float32.")


def _capability(gpu: Gpu) -> float:
    try:
        return float(gpu.capability)
    except ValueError:  # an old driver does not know the field
        return _BFLOAT16_CAPABILITY


def local_memory(config: Config, gpus: Sequence[Gpu]) -> Result:
    """The model of the local engine in the memory of its GPU, or of this machine.

    Raises `EquipoiseError` where it cannot be held.
    """
    name = config.policy.model_name
    if name == LOCAL_MODEL:
        return ok(MEMORY, "the task's own small model is at home everywhere")
    if model_shape(name) is None:
        return unchecked(MEMORY, f"the shape of {name} is not known before it is loaded")
    gpu = bool(gpus) and config.equipoise.device != "cpu"
    has = gpus[0].total if gpu else ram_bytes()
    refuse_model_above(config, has, gpu=gpu)
    where = "the GPU" if gpu else "this machine"
    return ok(MEMORY, f"weights, gradients and optimizer fit the {has / GB:.0f} GB of {where}")


def host_memory(config: Config, has: int) -> Iterator[Result]:
    """Compare what NeMo-RL's workers keep on a node's host with the `has` bytes of this one."""
    shape = model_shape(config.policy.model_name)
    if shape is None:
        return
    needs = host_bytes(config, shape)
    message = f"a node's host holds {needs / GB:,.0f} GB at least, this one has {has / GB:,.0f} GB"
    if needs <= _TIGHT_HOST * has:
        yield ok(MEMORY, message)
        return
    remedy = "Take nodes with more memory, or split the model over the GPUs of more nodes."
    yield (failure if needs > has else warning)(MEMORY, message, remedy)


def nemo_rl_memory(driver: Driver | None, config: Config) -> Iterator[Result]:
    """The estimate of `--dry-run` against the GPUs that are here."""
    if driver is None or not driver.gpus:
        yield unchecked(MEMORY, "no GPU is here to compare the estimate with")
        return
    smallest = min(gpu.total for gpu in driver.gpus) / GB
    if not smallest:
        yield unchecked(MEMORY, "the driver does not say how much memory a GPU has")
        return
    ours = config.equipoise.model_copy(update={"gpu_memory_gb": round(smallest, 1)})
    local_config = config.model_copy(update={"equipoise": ours})
    problems = [failure(MEMORY, problem.message) for problem in memory_problems(local_config)]
    tight = [warning(MEMORY, text) for text in nemo_rl_warnings(local_config)]
    yield from problems or tight or [ok(MEMORY, f"the estimate fits GPUs of {smallest:.0f} GB")]
