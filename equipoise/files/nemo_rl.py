"""NeMo-RL: its versions and what is called of it, where it and its Pythons are, and the way there.

A start reads the installed version against the table `CALLED`. The names of its keys are in
equipoise/config/nemo_rl_keys.yaml, the packages of its image in containers/.
"""

import importlib.util
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from equipoise.files.errors import EquipoiseError

#: The release whose code was run, and whose image is the default.
RELEASE = "v0.7.0"
IMAGE = f"nvcr.io/nvidia/nemo-rl:{RELEASE}"
#: The versions that were read and run: their commits.
TRIED: Mapping[str, str] = {
    RELEASE: "81aa43dda4765b0429cf31dab44441e4e4383911",
    "main-7ea279a": "7ea279abfbeb698b092856d0dab61e7cf39bc909",  # of 22 August 2026
}

_TRAINER = (
    "policy policy_generation val_dataloader tokenizer loss_fn task_to_env val_task_to_env logger "
    "checkpointer grpo_save_state master_config"
)
_ROLLOUTS = (
    "policy_generation input_batch tokenizer task_to_env max_seq_len max_rollout_turns greedy"
)
#: Module below nemo_rl and name in it, its user in equipoise/train/nemo_rl, parameters.
CALLED = f"""
algorithms.grpo:MasterConfig recipe.py
algorithms.grpo:setup recipe.py master_config tokenizer dataset val_dataset policy_factory
algorithms.grpo:grpo_train recipe.py wrapped_dataloader {_TRAINER}
algorithms.grpo:async_grpo_train recipe.py dataloader {_TRAINER} max_trajectory_age_steps
algorithms.grpo:refit_policy_generation recipe.py policy policy_generation colocated_inference
algorithms.grpo:refit_policy_generation recipe.py _refit_buffer_size_gb
algorithms.utils:get_tokenizer recipe.py tokenizer_config
data.collate_fn:rl_collate_fn recipe.py data_batch
data.datasets.raw_dataset:RawDataset dataset.py
data.utils:setup_response_data recipe.py tokenizer data_config
distributed.virtual_cluster:init_ray recipe.py
environments.interfaces:EnvironmentInterface actor.py
environments.interfaces:EnvironmentReturn scoring.py observations metadata next_stop_strings
environments.interfaces:EnvironmentReturn scoring.py rewards terminateds answers
experience.rollouts:run_multi_turn_rollout recipe.py {_ROLLOUTS}
experience.rollouts:run_async_multi_turn_rollout recipe.py {_ROLLOUTS}
models.generation:configure_generation_config recipe.py config tokenizer
models.generation:configure_generation_config recipe.py has_refit_draft_weights trains_mtp
models.policy.lm_policy:Policy recipe.py config weights_path optimizer_path
utils.config:load_config recipe.py config_path
utils.config:register_omegaconf_resolvers recipe.py
utils.logger:Logger.log_metrics history.py metrics step prefix
utils.logger:Logger.log_batched_dict_as_jsonl history.py to_log filename
utils.logger:get_next_experiment_dir recipe.py base_log_dir
"""


def is_tried(version: str) -> bool:
    """Whether a version was tried; its text is that of NeMo-RL's package, 0.7.0+81aa43dda.

    A checkout names its commit, and the source of a release may not.
    """
    number, _, commit = version.partition("+")
    if not commit:
        return f"v{number}" in TRIED
    return any(tried.startswith(commit) for tried in TRIED.values())


def unmet() -> Iterator[str]:
    """Yield what the NeMo-RL that can be imported lacks, with the file that calls it."""
    for line in CALLED.strip().splitlines():
        path, user, *parameters = line.split()
        module, _, name = path.partition(":")
        try:
            function: Any = import_module(f"nemo_rl.{module}")
            for part in name.split("."):
                function = getattr(function, part)
            accepted = inspect.signature(function).parameters if parameters else {}
            missing = [word for word in parameters if word not in accepted]
        except (ImportError, AttributeError) as error:
            missing = [str(error)]
        if missing:
            yield f"nemo_rl.{module}.{name} lacks {', '.join(missing)} ({user})"


# --- Where it is ----------------------------------------------------------------------------------
# One of its Pythons has Megatron-Bridge, which NeMo-RL keeps in its Megatron workers' environment.

#: Names a checkout of NeMo-RL, for machines without its container.
PATH_VARIABLE = "NEMO_RL_PATH"
#: Names the Python that has what NeMo-RL's driver needs, where it is not in the usual place.
PYTHON_VARIABLE = "NEMO_RL_PYTHON"
#: Names the Python that has Megatron-Bridge, where it is not in one of NeMo-RL's usual places.
MEGATRON_PYTHON = "MEGATRON_PYTHON"
#: Set by `hand_over` for the process that runs in NeMo-RL's Python.
LAUNCHED = "EQUIPOISE_LAUNCHED"
_CONTAINER_ROOT = Path("/opt/nemo-rl")
#: Where NeMo-RL's image has its driver's environment.
_CONTAINER_ENVIRONMENT = Path("/opt/nemo_rl_venv")
#: NeMo-RL names a worker's environment after its class.
_MEGATRON_WORKER = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
_REMEDY = (
    f"Start it in the container {IMAGE}, or set {PATH_VARIABLE} to a checkout of "
    f"NVIDIA-NeMo/RL at {RELEASE}; pip cannot install it."
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A NeMo-RL that can be run; `root` holds nemo_rl/ and examples/."""

    root: Path

    @property
    def base_config(self) -> Path:
        """Path of the version's own configuration, which has every key that its code reads."""
        return self.root / "examples" / "configs" / "grpo_math_1B.yaml"

    @property
    def version(self) -> str:
        """Number in its package, and the commit where it is a checkout."""
        namespace = runpy.run_path(str(self.root / "nemo_rl" / "package_info.py"))
        return str(namespace["__version__"])

    def make_importable(self) -> None:
        """For this process and for the Ray workers that it will start."""
        root = str(self.root)
        if root not in sys.path:
            sys.path.insert(0, root)
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if root not in entries:
            os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in (root, *entries) if entry)


def is_launched() -> bool:
    return LAUNCHED in os.environ


def is_installed() -> bool:
    """Whether a NeMo-RL and its Python can be found, of whatever version."""
    root = find_root()
    return root is not None and _python(root) is not None


def find_installation() -> Installation:
    """Find the NeMo-RL at `NEMO_RL_PATH`, or else the importable one.

    Raises `EquipoiseError` with the next step when there is none, or one without its examples.
    """
    root = find_root()
    if root is None:
        message = "NeMo-RL is not installed here"
        if path := os.environ.get(PATH_VARIABLE):
            message = f"{PATH_VARIABLE} is {path}, which holds no nemo_rl/algorithms/grpo.py"
        raise EquipoiseError("nemo-rl.no-installation", message, _REMEDY)
    installation = Installation(root)
    if not installation.base_config.is_file():
        raise EquipoiseError(
            "nemo-rl.unusable-installation",
            f"the NeMo-RL at {root} has no {installation.base_config.relative_to(root)}",
            _REMEDY,
        )
    return installation


def find_python(root: Path) -> Path:
    """Find the Python of NeMo-RL's driver, which runs the training.

    Raises `EquipoiseError` with the next step when there is none.
    """
    if python := _python(root):
        return python
    raise EquipoiseError(
        "nemo-rl.no-python",
        f"the NeMo-RL at {root} has no Python environment",
        f"Run `uv sync --locked` in {root}, or name the Python of its driver in {PYTHON_VARIABLE}.",
    )


def _python(root: Path) -> Path | None:
    """A path is taken as it is: resolving the link would leave the virtual environment."""
    folders = (root / ".venv", _CONTAINER_ENVIRONMENT)
    candidates = [folder / "bin" / "python" for folder in folders]
    if named := os.environ.get(PYTHON_VARIABLE):
        candidates = [Path(named).expanduser()]
    elif _importable_root() == root:
        candidates.append(Path(sys.executable))
    return next((path for path in candidates if path.is_file()), None)


def find_root() -> Path | None:
    """Find the folder with nemo_rl/ in it, of whatever version; None without one."""
    path = os.environ.get(PATH_VARIABLE)
    if path:
        root = Path(path).expanduser().resolve()
        return root if _is_package(root / "nemo_rl") else None
    in_container = _CONTAINER_ROOT if _is_package(_CONTAINER_ROOT / "nemo_rl") else None
    return _importable_root() or in_container


def _importable_root() -> Path | None:
    spec = importlib.util.find_spec("nemo_rl")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return next((folder.parent for folder in folders if _is_package(folder)), None)


def _is_package(folder: Path) -> bool:
    return (folder / "algorithms" / "grpo.py").is_file()


def find_megatron_python() -> Path:
    """Find the Python that has Megatron-Bridge. Raises `EquipoiseError` if there is none."""
    candidates: list[Path] = []
    if named := os.environ.get(MEGATRON_PYTHON):
        candidates.append(Path(named).expanduser())
    else:
        find_spec = importlib.util.find_spec
        if find_spec("megatron") and find_spec(
            "megatron.bridge"
        ):  # others are called megatron, too
            candidates.append(Path(sys.executable))
        root = find_root()
        if folder := os.environ.get("NEMO_RL_VENV_DIR") or (root / "venvs" if root else None):
            candidates.append(Path(folder) / _MEGATRON_WORKER / "bin" / "python")
    for python in candidates:
        if python.is_file():
            return python
    raise EquipoiseError(
        "nemo-rl.no-megatron-bridge",
        f"{MEGATRON_PYTHON} is {named}, which is not a file"
        if named
        else "there is no "
        "Megatron-Bridge here, neither beside this Python nor in an environment of NeMo-RL's",
        f"Run the same command in the container {IMAGE}. In a checkout of "
        "NeMo-RL, `uv sync --locked --extra mcore` makes the environment (on a machine with "
        f"CUDA's compiler); then set {MEGATRON_PYTHON}=<checkout>/.venv/bin/python",
    )


def without_python_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the variables that name another Python's packages, for a Python of NeMo-RL's.

    Below `uv run` Ray would send this folder to every node and start its workers by uv there.
    """
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {name: value for name, value in environment.items() if name not in ours}
    return variables | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


# --- Into NeMo-RL's Python ------------------------------------------------------------------------
# NeMo-RL's driver and its workers must have one Python, one Ray and NeMo-RL's locked packages, so
# the training runs in NeMo-RL's environment, which stays as it is: ours lies beside it, see
# containers/nemo_rl.sh. The process is replaced (`exec`): signals and exit codes are those of the
# training.

SCRIPT = Path(__file__).resolve().parents[2] / "containers" / "nemo_rl.sh"
UV_RUN = "Start it with `uv run`, which installs what is needed."


def hand_over(root: Path) -> NoReturn:
    """Go on in the Python of the NeMo-RL at `root`, with the same recipe and words."""
    _become(root, find_python(root), {LAUNCHED: "1"})


def complete_packages(missing: Sequence[str]) -> NoReturn:
    """Start again with what this Python is `missing`, where NeMo-RL's own was started.

    Raises `EquipoiseError` in any other Python.
    """
    root, this = find_root(), Path(sys.executable)
    if root and is_installed() and not sys.flags.ignore_environment:  # which reads no PYTHONPATH
        python = find_python(root)
        if python.parent.samefile(this.parent):
            _become(root, python, {})
    raise EquipoiseError(
        "launch.missing-packages", f"the Python {this} has no {', '.join(missing)}", UV_RUN
    )


def _become(root: Path, python: Path, variables: dict[str, str]) -> NoReturn:
    if not SCRIPT.is_file():
        raise EquipoiseError(
            "launch.no-checkout",
            "Equipoise is installed here without its repository, and NeMo-RL's Python reads it "
            "from there",
            "Start the recipe in a clone of the repository.",
        )
    paths = {PATH_VARIABLE: str(root), PYTHON_VARIABLE: str(python)}
    sys.stdout.flush()
    sys.stderr.flush()
    command = ["bash", str(SCRIPT), *sys.orig_argv[1:]]
    os.execvpe("bash", command, {**os.environ, **paths, **variables})  # noqa: S606, S607


# --- Megatron's form of a model -------------------------------------------------------------------
# NeMo-RL makes it once, and loads it unseen ever after.

CONVERSIONS_VARIABLE = "NRL_MEGATRON_CHECKPOINT_DIR"
_ITERATION = "iter_0000000"
#: Written last by Megatron-Bridge, beside the iteration.
_TRACKERS = ("latest_train_state.pt", "latest_checkpointed_iteration.txt")
#: Seconds between two looks whether a conversion is done.
_INTERVAL = 2.0


def conversions(environment: Mapping[str, str]) -> Path:
    """Return the folder in which NeMo-RL keeps them."""
    home = environment.get("HF_HOME", "").strip() or Path.home() / ".cache" / "huggingface"
    return Path(environment.get(CONVERSIONS_VARIABLE) or Path(home) / "nemo_rl").expanduser()


def conversion_of(model: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of a model's conversion; a folder's model has a name of its own there."""
    name = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
    return conversions(environment) / name


def is_converted(folder: Path) -> bool:
    """Whether the conversion was finished: NeMo-RL itself asks for no more than an iteration."""
    files = [folder / _ITERATION / name for name in (".metadata", "run_config.yaml")]
    return all(file.is_file() for file in files) and any(
        (folder / name).is_file() for name in _TRACKERS
    )


def broken_conversion(folder: Path) -> EquipoiseError | None:
    """The error of a conversion that was begun and never finished; None for any other folder."""
    if not (folder / _ITERATION).exists() or is_converted(folder):
        return None
    return EquipoiseError(
        "megatron.broken-conversion",
        f"{folder} is not whole: its conversion to Megatron's form was broken off, and NeMo-RL "
        "would load it",
        f"Unless another run is converting the model right now: rm -r {folder}",
    )


@contextmanager
def converting(
    model: str, environment: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Let one run at a time begin a model's conversion; those that wait find it done.

    The lock is free again as soon as the conversion is whole. Raises `EquipoiseError` for one that
    was broken off.
    """
    folder = conversion_of(model, environment)
    if is_converted(folder):
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Released by another thread than the one that takes it.
    lock = FileLock(f"{folder}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another run converts the model for Megatron: waiting for {folder}")
        lock.acquire()
    ended = Event()

    def release_when_converted() -> None:
        while not ended.wait(_INTERVAL):
            if is_converted(folder):
                break
        lock.release()

    watcher = Thread(target=release_when_converted, daemon=True)
    try:
        if error := broken_conversion(folder):
            raise error
        watcher.start()
        yield
    finally:
        ended.set()
        if watcher.ident is None:
            lock.release()
        else:
            watcher.join()
