r"""How many of NeMo-RL's statements the rehearsals run, over all of their processes, by part.

    export NEMO_RL_PATH=/path/to/RL EQUIPOISE_VLLM_PYTHON=/path/to/vllm/bin/python
    uv run --extra rehearse --with coverage python docs/experiments/nemo_rl_statements.py FOLDER

runs the commands below that FOLDER holds no measurement of, prints the table of all that it holds,
and writes FOLDER/never_ran.txt, line by line. More words name one measurement and its command:
`FOLDER mine recipes/grpo_dharma.py --rehearse --config mine.yaml`.

Ray ends its workers without a word, so each process writes what it has run every two seconds.
Importing a module runs its definitions, which the first column counts. Threads that are not
Python's own, as those of an actor with max_concurrency, are seen from Python 3.12 on, with
COVERAGE_CORE=sysmon.
"""

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import coverage

from equipoise.config.nemo_rl.installation import PATH_VARIABLE
from equipoise.train.nemo_rl.rehearsal.vllm import PYTHON_VARIABLE
from tests.contract.rehearsal import SMALL

_ONE_STEP = "--iterations=1"  # so that nothing is stopped and resumed
_ASYNCHRONOUS = (
    *("cluster.gpus_per_node=2", "policy.generation.colocated.enabled=false"),
    "policy.generation.colocated.resources.gpus_per_node=1",
    *("grpo.async_grpo.enabled=true", "policy.generation.vllm_cfg.async_engine=true"),
    "loss_fn.use_importance_sampling_correction=true",
)
#: Two ranks share a model whose vocabulary they can halve; a loss by sequences.
_SHARED = (
    *("cluster.gpus_per_node=2", "policy.dtensor_cfg.tensor_parallel_size=2"),
    *("policy.dtensor_cfg.lora_cfg.use_triton=false", "equipoise.local_model.vocab_size=1200"),
    *("grpo.adv_estimator.name=reinforce_plus_plus", "loss_fn.token_level_loss=false"),
    "loss_fn.sequence_level_importance_ratios=true",
    "loss_fn.use_importance_sampling_correction=true",
    "loss_fn.truncated_importance_sampling_type=tis",
    "loss_fn.truncated_importance_sampling_ratio=2.0",
)

#: What a configuration may ask of NeMo-RL's loop beside the shipped ones.
_OPTIONS = (
    *("grpo.val_period=1", "checkpointing.save_period=1", "policy.dynamic_batching.enabled=true"),
    *("logger.tensorboard_enabled=true", "logger.num_val_samples_to_print=2"),
    *("grpo.overlong_filtering=true", "grpo.reward_scaling.enabled=true"),
    *("grpo.reward_shaping.enabled=true", "grpo.reward_shaping.overlong_buffer_length=8"),
    *("grpo.reward_shaping.max_response_length=48", "grpo.normalize_rewards=true"),
    *("grpo.use_leave_one_out_baseline=true", "loss_fn.ratio_clip_c=3.0"),
    "loss_fn.use_importance_sampling_correction=true",
)


def rehearsal(scale: str, *words: str) -> list[str]:
    """Return the words of a small rehearsal of the fairness task."""
    name = f"--config=nemo_configs/{scale}.yaml"
    return ["recipes/grpo_fairness.py", "--rehearse", name, *SMALL, *words]


def contract(name: str, *words: str) -> list[str]:
    """Return the words that run a contract test."""
    return ["-m", "pytest", "-q", "-n0", f"tests/contract/{name}", *words]


#: Imports what a rehearsal's processes import.
_IMPORTS = """
import typing, typing_extensions
typing.TypedDict = typing_extensions.TypedDict
from equipoise.config.nemo_rl.installation import find_installation
find_installation().make_importable()
import equipoise.train.nemo_rl.rehearsal.policy_worker
import nemo_rl.algorithms.async_utils, nemo_rl.algorithms.grpo
from nemo_rl.models.generation.vllm import vllm_generation, vllm_worker, vllm_worker_async
"""
#: By the name of a column; with "vLLM" in it, vLLM generates where its Python is named.
COMMANDS = {
    "imports alone": ["-c", _IMPORTS],
    "two ranks, packed": rehearsal("large", _ONE_STEP),
    "asynchronous, vLLM": rehearsal("small", _ONE_STEP, *_ASYNCHRONOUS),
    "asynchronous": rehearsal(
        *("small", _ONE_STEP, *_ASYNCHRONOUS, "logger.swanlab_enabled=true"),
        "logger.mlflow_enabled=true",
        f"logger.mlflow.tracking_uri=sqlite:///{gettempdir()}/mlflow.db",
    ),
    "Megatron's worker": contract("test_megatron_bridge.py", "-k", "PolicyWorker or OnePolicy"),
    "first worker, resumed": rehearsal(
        *("small", "--iterations=2", "policy.dtensor_cfg._v2=false"),
        *("policy.dtensor_cfg.lora_cfg.enabled=false", *_OPTIONS),
    ),
    "tensor parallelism": rehearsal("small", _ONE_STEP, *_SHARED),
    "DTensor workers": contract("test_dtensor_workers.py"),
    "vLLM": contract("test_vllm.py", "-k", "not rehearsal"),
}
#: Parts in the order of their claim to a file: each counts for the first one that it belongs to.
PARTS = {
    "set-up and loop": ("algorithms/grpo.py",),
    "losses": ("algorithms/loss/",),
    "asynchronous GRPO": ("algorithms/async_utils/",),
    "other trainers": (
        *("algorithms/ppo.py", "algorithms/dpo.py", "algorithms/rm.py", "algorithms/sft.py"),
        *("algorithms/distillation.py", "algorithms/opd.py", "algorithms/x_token/"),
        *("algorithms/xtoken", "algorithms/grpo_sync.py", "models/value/", "data_plane/"),
        *("models/policy/teacher", "models/policy/tq_policy.py", "experience/rollout_manager.py"),
        *("experience/sync_rollout_actor.py", "evals/"),
    ),
    "advantages and the rest of algorithms": ("algorithms/",),
    "rollouts": ("experience/",),
    "data sets of its own": ("data/datasets/",),
    "data": ("data/",),
    "environments of its own": ("environments/",),
    "logger, checkpoint manager, timers": ("utils/",),
    "DTensor worker": ("models/policy/workers/dtensor_policy_worker_v2.py",),
    "first DTensor worker": ("models/policy/workers/dtensor_policy_worker.py", "models/dtensor/"),
    "Automodel": ("models/automodel/",),
    "Megatron": (
        *("models/megatron/", "models/policy/workers/megatron", "models/generation/megatron/"),
    ),
    "policy": ("models/policy/", "models/huggingface/"),
    "worker groups, cluster, placement": ("distributed/",),
    "vLLM's FP8": ("models/generation/vllm/quantization/",),
    "vLLM's workers": ("models/generation/vllm/",),
    "SGLang, TensorRT-LLM, Dynamo": (
        *("models/generation/sglang/", "models/generation/trtllm", "models/generation/dynamo"),
    ),
    "quantized training": ("modelopt/",),
    "all else": ("",),
}
#: Line numbers by the file's path below nemo_rl.
Lines = dict[str, set[int]]
START = """
import atexit, threading, time
import coverage
running = coverage.Coverage(config_file={config!r})
running.start()
atexit.register(running.save)
def write():
    while True:
        time.sleep(2)
        running.save()
threading.Thread(target=write, daemon=True).start()
"""


def main(folder: Path, name: str = "", *words: str) -> None:
    """Measure what is missing, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(os.environ[PATH_VARIABLE]).resolve() / "nemo_rl"
    for label, command in ({name: list(words)} if name else COMMANDS).items():
        if not (folder / f"{label}.coverage").exists():
            measure(folder / f"{label}.coverage", root, label, command)
    paths = sorted(folder.glob("*.coverage"), key=lambda path: path.stat().st_mtime)
    statements, ran = (
        all_statements(root),
        {path.stem: lines_that_ran(path, root) for path in paths},
    )
    show(statements, ran)
    write_never_ran(folder / "never_ran.txt", statements, ran)


def measure(path: Path, root: Path, label: str, command: list[str]) -> None:
    """Run a command with every process measured. Raises where it fails."""
    with TemporaryDirectory() as made:
        config = Path(made) / "coveragerc"
        config.write_text(
            f"[run]\nparallel = true\ndata_file = {made}/data\nsource = {root}\n"
            "disable_warnings = no-data-collected,module-not-imported\n"
        )
        (Path(made) / "sitecustomize.py").write_text(START.format(config=str(config)))
        paths = (made, str(Path(coverage.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment["SWANLAB_MODE"] = "offline"
        if "vLLM" not in label:
            environment.pop(PYTHON_VARIABLE, None)
        subprocess.run([sys.executable, *command], env=environment, check=True)
        combine(path, Path(made))


def combine(path: Path, folder: Path) -> None:
    """Write one measurement of those of a folder's processes."""
    data = coverage.Coverage(config_file=False, data_file=str(path))
    data.combine([str(file) for file in folder.glob("data.*")])
    data.save()


def all_statements(root: Path) -> Lines:
    """The lines of every file's statements."""
    source = coverage.Coverage(config_file=False, data_file=None)
    source.clear_exclude()  # NeMo-RL excludes its Ray actors
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}
    return {name: set(source.analysis2(str(path))[1]) for name, path in files.items()}


def lines_that_ran(path: Path, root: Path) -> Lines:
    """The lines of the statements that a measurement has seen, by file."""
    data = coverage.Coverage(config_file=False, data_file=str(path))
    data.load()
    data.clear_exclude()
    lines = {}
    for file in data.get_data().measured_files():
        _, statements, _, missing, _ = data.analysis2(file)
        lines[Path(file).relative_to(root).as_posix()] = set(statements) - set(missing)
    return lines


def show(statements: Lines, ran: dict[str, Lines]) -> None:
    """Print a table of Markdown: shares of each part by measurement, and of all together."""
    columns = ran | {"in all": union(statements, ran)}
    print(f"| part | statements | {' | '.join(columns)} |")
    print(f"|---|---|{'---|' * len(columns)}")
    for part in (*PARTS, "**in all**"):
        files = [name for name in statements if part not in PARTS or part_of(name) == part]
        total = sum(len(statements[name]) for name in files)
        counts = [sum(len(lines.get(name, ())) for name in files) for lines in columns.values()]
        shares = " | ".join(f"{count / total:.0%}" for count in counts)
        print(f"| {part} | {total:,} | {shares} |")


def union(statements: Lines, ran: dict[str, Lines]) -> Lines:
    """The lines that ran in any measurement."""
    return {name: set().union(*(m.get(name, ()) for m in ran.values())) for name in statements}


def part_of(name: str) -> str:
    """The part that claims a file."""
    return next(part for part, starts in PARTS.items() if name.startswith(starts))


def write_never_ran(path: Path, statements: Lines, ran: dict[str, Lines]) -> None:
    """Write one line per file: its statements, how many never ran, and the lines of those."""
    rows = []
    for name, lines in union(statements, ran).items():
        missing = sorted(statements[name] - lines)
        count = f"{len(missing)} of {len(statements[name])} never ran"
        rows.append(f"{name}: {count}: {ranges(missing, statements[name])}")
    path.write_text("\n".join(rows) + "\n")


def ranges(missing: list[int], lines: set[int]) -> str:
    """Lines as ranges, which lines that are no statements do not interrupt."""
    position = {line: at for at, line in enumerate(sorted(lines))}
    runs = [
        [line for _, line in run]
        for _, run in groupby(enumerate(missing), key=lambda pair: position[pair[1]] - pair[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
