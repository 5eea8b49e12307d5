"""Everything that Equipoise assumes of NeMo-RL's code, by file and name.

A new version is read against this page: `unmet` says what it lacks, without importing it. The names
of its keys are in keys.yaml, the packages of its image in containers/.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: The release whose code was run, and whose image is the default.
RELEASE = "v0.7.0"
IMAGE = f"nvcr.io/nvidia/nemo-rl:{RELEASE}"
#: The versions that were read and run: their commits.
TRIED: Mapping[str, str] = {
    RELEASE: "81aa43dda4765b0429cf31dab44441e4e4383911",
    "main-7ea279a": "7ea279abfbeb698b092856d0dab61e7cf39bc909",  # of 22 August 2026
}
#: What it names a resource of a Ray that it started for a run on one machine.
OWN_CLUSTER = "nrl_tag_"

#: What needs an assumption: every run, asynchronous GRPO, a rehearsal without a GPU.
Need = Literal["run", "async", "rehearsal"]
EVERY_RUN: tuple[Need, ...] = ("run",)


@dataclass(frozen=True, slots=True)
class Assumption:
    """Names that a file of NeMo-RL has, and what they are for; `texts` are pieces of its text.

    A name is bound at the file's top level, or is `Class.attribute` there.
    """

    file: str
    use: str
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    need: Need = "run"


def _members(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


_GRPO = "nemo_rl/algorithms/grpo.py"
#: The functions and classes of the trainer that are replaced while a run is watched.
TRAINER = Assumption(
    _GRPO,
    "replaced to follow a run: train/nemo_rl/hooks.py",
    names=(
        *("Logger", "TimeoutChecker", "validate", "run_multi_turn_rollout", "Policy"),
        *("run_async_multi_turn_rollout", "grpo_train", "async_grpo_train"),
    ),
    texts=("val_at_start",),
)
_REHEARSAL = "train/nemo_rl/rehearsal"
ASSUMPTIONS: tuple[Assumption, ...] = (
    TRAINER,
    Assumption(
        "nemo_rl/environments/utils.py",
        "registers the environment: train/nemo_rl/engine.py",
        names=("ENV_REGISTRY", "register_env"),
    ),
    Assumption(
        "nemo_rl/environments/interfaces.py",
        "the environment's actor: train/nemo_rl/{actor,together}.py",
        names=("EnvironmentInterface", "EnvironmentReturn"),
    ),
    Assumption(
        "nemo_rl/distributed/ray_actor_environment_registry.py",
        "the actor's Python: train/nemo_rl/engine.py",
        names=("ACTOR_ENVIRONMENT_REGISTRY",),
    ),
    Assumption(
        "nemo_rl/distributed/virtual_cluster.py",
        f"the actor's Python, and Ray's start: train/nemo_rl/engine.py, {_REHEARSAL}/backend.py",
        names=("PY_EXECUTABLES", "PY_EXECUTABLES.SYSTEM", "init_ray"),
    ),
    Assumption(
        "nemo_rl/data/datasets/response_datasets/__init__.py",
        "takes the prompts' dataset class by its name: train/nemo_rl/configuration.py",
        names=("resolve_external_dataset_class",),
    ),
    Assumption(
        "nemo_rl/data/datasets/raw_dataset.py",
        "the prompts' dataset: train/nemo_rl/dataset.py",
        names=("RawDataset",),
    ),
    Assumption(
        "nemo_rl/data/collate_fn.py",
        "batches of the evaluations: train/nemo_rl/hooks.py",
        names=("rl_collate_fn",),
    ),
    Assumption(
        "nemo_rl/package_info.py",
        "its version: config/nemo_rl/installation.py",
        names=("__version__",),
    ),
    Assumption(
        "examples/run_grpo.py",
        "runs the training: train/nemo_rl/engine.py",
        texts=("setup_response_data",),
    ),
    Assumption(
        "examples/configs/grpo_math_1B.yaml",
        "holds every key and the sections of ours: train/nemo_rl/configuration.py",
        texts=("val_at_end", "dtensor_cfg:", "lora_cfg:", "megatron_cfg:", "peft:", "vllm_cfg:"),
    ),
    # Extended so that counterfactual sets stay whole.
    Assumption(
        "nemo_rl/algorithms/async_utils/replay_buffer.py",
        "extended to train on whole sets: train/nemo_rl/whole_sets.py",
        names=_members("ReplayBufferImpl", "add", "size", "sample", "has_complete_batch"),
        need="async",
    ),
    Assumption(
        "nemo_rl/algorithms/async_utils/trajectory_collector.py",
        "extended to collect whole sets: train/nemo_rl/whole_sets.py",
        names=_members(
            "AsyncTrajectoryCollector",
            *("start_collection", "_process_batch", "wait_for_pending_generations"),
            *("_calculate_target_weights", "_should_pause_for_generation_limits"),
        ),
        need="async",
    ),
    Assumption(
        "nemo_rl/algorithms/async_utils/__init__.py",
        "replaced by the two that are extended: train/nemo_rl/hooks.py",
        names=("ReplayBuffer", "AsyncTrajectoryCollector"),
        need="async",
    ),
    Assumption(
        "nemo_rl/distributed/batched_data_dict.py",
        f"what workers take and give: {_REHEARSAL}/{{generation_worker,backend}}.py",
        names=("BatchedDataDict",),
        need="rehearsal",
    ),
    Assumption(
        "nemo_rl/models/policy/lm_policy.py",
        f"starts our worker: {_REHEARSAL}/backend.py",
        names=("resolve_policy_worker_cls",),
        need="rehearsal",
    ),
    Assumption(
        "nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py",
        f"the worker, on a CPU: {_REHEARSAL}/policy_worker.py",
        names=("DTensorPolicyWorkerV2Impl",),
        need="rehearsal",
    ),
    Assumption(
        "nemo_rl/models/policy/utils.py",
        f"the protocol of a refit, the worker: {_REHEARSAL}/{{generation_worker,backend}}.py",
        names=("IPCProtocol", "calculate_aligned_size", "resolve_policy_worker_cls"),
        need="rehearsal",
    ),
    Assumption(
        "nemo_rl/models/generation/vllm/vllm_generation.py",
        f"starts our worker: {_REHEARSAL}/backend.py",
        names=("resolve_generation_worker_cls",),
        need="rehearsal",
    ),
)


def is_tried(version: str) -> bool:
    """Whether a version was tried; its text is that of NeMo-RL's package, 0.7.0+81aa43dda.

    A checkout names its commit, and the source of a release may not.
    """
    number, _, commit = version.partition("+")
    if not commit:
        return f"v{number}" in TRIED
    return any(tried.startswith(commit) for tried in TRIED.values())


def unmet(root: Path, needs: Collection[Need] = EVERY_RUN) -> Iterator[str]:
    """Yield what the NeMo-RL at `root` lacks of what these need, with what it is for."""
    for assumption in ASSUMPTIONS:
        if assumption.need in needs and (lack := lack_of(root, assumption)):
            yield f"{lack} ({assumption.use})"


def lack_of(root: Path, assumption: Assumption) -> str:
    """Say what the NeMo-RL at `root` lacks of an assumption; empty for nothing."""
    path = root / assumption.file
    if not path.is_file():
        return f"it has no {assumption.file}"
    text = path.read_text(encoding="utf-8")
    if [piece for piece in assumption.texts if piece not in text]:
        return f"its {assumption.file} is of another version"
    bound = _bound_names(text) if assumption.names else set()
    missing = [name for name in assumption.names if name not in bound]
    return f"its {assumption.file} has no {', '.join(missing)}" if missing else ""


def _bound_names(text: str) -> set[str]:
    """Names that a module binds at its top level, and the attributes of its classes."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return set()
    names = set()
    for node in body:
        names |= _names_of(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for inner in node.body for name in _names_of(inner)}
    return names


def _names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.If | ast.Try):  # a name that depends on what is installed
        return {name for inner in node.body for name in _names_of(inner)}
    return set()
