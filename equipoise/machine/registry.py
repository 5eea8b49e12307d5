"""Every check: its question, its usual remedy, when it is asked, and what answers it.

The doctor asks all, a start those that are cheap and end it. docs/doctor.md has the table, which a
test compares with this one.
"""

from collections.abc import Callable, Iterator

from equipoise.errors import EquipoiseError
from equipoise.machine import accounts, nemo_rl, software, storage, task
from equipoise.machine.checks import (
    Case,
    Check,
    Finding,
    Result,
    failure,
    ok,
    run_together,
    unchecked,
    warning,
)

#: Seconds for an answer from the network, and for another Python that imports torch.
_NETWORK, _PYTHON = 10.0, 90.0


def configuration(case: Case) -> Iterator[Finding]:
    """The configuration that is named, and what of it is hardly meant."""
    if case.invalid:
        yield failure(case.invalid.message, case.invalid.remedy)
    elif case.loaded is None:
        yield unchecked(case.without_run)
    else:
        name, engine = case.config.equipoise.task, case.loaded.engine
        fine = ok(f"{name} on the engine {engine}, model {case.config.policy.model_name}")
        yield from [warning(text) for text in case.loaded.warnings] or [fine]


#: In the order of the table: what others need comes before them.
CHECKS = (
    Check(
        "configuration",
        "files, flags and keys: that they make one valid run, and what of it is hardly meant",
        "Correct the keys that it names: docs/configuration.md.",
        "machine",
        configuration,
    ),
    Check(
        "Python",
        "its version, and every package against the versions that Equipoise asks for",
        software.UV_RUN,
        "machine",
        software.python,
    ),
    Check(
        ".env",
        "lines that cannot be read, who may read it, what gives way to variables set already",
        "Write one NAME=value a line, as in .env.example, and `chmod 600 .env`.",
        "machine",
        accounts.env_file,
    ),
    Check(
        "NeMo-RL",
        "absent, the placeholder of its name, another version, no Python of its own",
        nemo_rl.REMEDY,
        "machine",
        nemo_rl.nemo_rl,
        starts=("nemo_rl",),
        seconds=_PYTHON,
    ),
    Check(
        "NeMo-RL's packages",
        "its environments against its own uv.lock: what was changed since they were made, and "
        "Equipoise in them",
        "Start again from the image, or run `uv sync --locked` in NeMo-RL's folder.",
        "machine",
        nemo_rl.packages,
        seconds=_PYTHON,
    ),
    Check(
        "Ray",
        "Python and Ray of the driver against those of the workers' environments",
        "Remove the environments of other versions; NeMo-RL makes them again.",
        "machine",
        nemo_rl.ray,
        starts=("nemo_rl",),
        seconds=_PYTHON,
    ),
    Check(
        "torch and driver",
        "the CUDA that torch was built for against what the driver supports; GPUs that torch sees",
        "Take a torch built for this driver's CUDA, or a newer driver: nvidia-smi shows its CUDA.",
        "machine",
        nemo_rl.torch,
        seconds=_PYTHON,
    ),
    Check(
        "GPUs",
        "how many there are against the configuration, of this machine or of the Ray cluster",
        "Take a node with such GPUs, or --config nemo_configs/local.yaml for a CPU.",
        "machine",
        nemo_rl.gpus,
        starts=("local", "nemo_rl"),
        seconds=_PYTHON,
    ),
    Check(
        "memory",
        "memory of the GPUs, or of this machine, against the estimate for the configuration",
        "Lower policy.train_micro_batch_size, train a LoRA, or take larger or more GPUs.",
        "run",
        nemo_rl.memory,
        starts=("local",),
        seconds=_PYTHON,
    ),
    Check(
        "shared memory",
        "the size of /dev/shm, where Ray and NCCL keep what processes share",
        "Start the container with --shm-size=64g, or with --ipc=host.",
        "run",
        storage.shared_memory,
    ),
    Check(
        "ports",
        "that nobody listens where Ray's head node will",
        "End what listens there (`ss -ltnp` shows it), or give ray.sub other ports.",
        "run",
        storage.ports,
    ),
    Check(
        "run directory",
        "that it can be written to, and that the run's name is free",
        "Choose another folder with --output-dir, or another --run-name.",
        "run",
        storage.run_directory,
    ),
    Check(
        "caches",
        "that equipoise.cache_dir, the Hub's cache and NeMo-RL's folders can be written to",
        "Choose another folder with equipoise.cache_dir=DIR, HF_HOME or the variable it names.",
        "run",
        storage.caches,
    ),
    Check(
        "disk",
        "free space for the checkpoints that the run keeps and for the models it loads",
        "Free some space, choose other folders, or lower checkpointing.keep_top_k.",
        "run",
        storage.disk,
    ),
    Check(
        "shared folders",
        "that every node of the Ray cluster, or of the Slurm job, sees what this one wrote",
        "Put the run directory and the caches on a file system that all nodes mount.",
        "run",
        nemo_rl.shared_folders,
        starts=("nemo_rl",),
        seconds=_PYTHON,
    ),
    Check(
        "wandb",
        "whether runs are tracked, and that the server takes the key",
        "Take a new key from wandb.ai/authorize as WANDB_API_KEY in .env, or use --no-wandb.",
        "machine",
        accounts.wandb,
    ),
    Check(
        "Hugging Face token",
        "that the hub takes the token, where there is one",
        "Make a new token on huggingface.co/settings/tokens, as HF_TOKEN in .env.",
        "machine",
        accounts.hub,
        seconds=_NETWORK,
    ),
    Check(
        "model",
        "a folder or a copy of the hub: weights, configuration, chat template; else the access to "
        "it",
        "Name a folder with a Hugging Face model, or a model on the hub, with --model-name.",
        "run",
        accounts.model,
        seconds=_NETWORK,
    ),
    Check(
        "parts of the task",
        "what its prompts and its reward need: that an index is of its source, that searches work",
        "Change equipoise.data or env in the configuration.",
        "run",
        task.parts,
    ),
    Check(
        "prompts",
        "the file and its hash, or how they are made; faults that no run can train on",
        "Correct the file, or let equipoise.data.module make the prompts.",
        "run",
        task.prompts,
    ),
    Check(
        "preparing models",
        "that the models that the prompts need answer one question",
        "Check its address, name and key, and that it runs: docs/judge-client.md.",
        "run",
        task.preparation,
    ),
    Check(
        "reward",
        "that what gives reward can be made: its settings, its rules, its keys",
        "Correct env in the configuration: docs/<task>.md.",
        "run",
        task.reward,
    ),
    Check(
        "models of the reward",
        "that each of them answers one question",
        "Check its address, name and key, and that it runs: docs/judge-client.md.",
        "run",
        task.answers,
    ),
)


def examine(case: Case) -> list[Result]:
    """One result at least of every check."""
    selected = [check for check in CHECKS if check.when == "machine" or case.loaded]
    results = run_together(selected, case)
    why = unchecked(case.without_run)
    results += [Result.of(check, why) for check in CHECKS if check not in selected]
    return sorted(results, key=lambda result: CHECKS.index(result.check))


def refuse_unfit(case: Case, warn: Callable[[str], None]) -> None:
    """Ask what concerns a start. Raises one `EquipoiseError` with everything that would fail."""
    failures: list[Result] = []
    for check in CHECKS:
        if case.configured.engine not in check.starts:
            continue
        for finding in check.run(case):
            result = Result.of(check, finding)
            if result.status == "warning":
                warn(result.says)
            elif result.status == "failure":
                failures.append(result)
    if len(failures) == 1:
        raise EquipoiseError("start.failed-check", failures[0].says, failures[0].remedy)
    if failures:
        raise EquipoiseError(
            "start.failed-checks", "\n".join(f"{r.says}\n  {r.remedy}" for r in failures), ""
        )
