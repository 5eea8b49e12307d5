"""Every check, what it looks at, what usually helps, and what one can say.

docs/doctor.md has the same table, which a test compares with this one.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from equipoise.installation.assumptions import RELEASE

Status = Literal["failure", "warning", "not checked", "ok"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Check:
    """A question to the machine. `remedy` is what helps where a result has no better one."""

    name: str
    looks_at: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Result:
    """A check's result; `remedy` is one line, and empty where nothing is wrong."""

    check: Check
    status: Status
    says: str
    remedy: str = ""


def ok(check: Check, says: str) -> Result:
    """Nothing is wrong."""
    return Result(check, "ok", says)


def warning(check: Check, says: str, remedy: str = "") -> Result:
    """The run works, and this is hardly meant."""
    return Result(check, "warning", says, remedy or check.remedy)


def failure(check: Check, says: str, remedy: str = "") -> Result:
    """The run would fail."""
    return Result(check, "failure", says, remedy or check.remedy)


def unchecked(check: Check, why: str) -> Result:
    """The result of a check that was left out, and why."""
    return Result(check, "not checked", why)


CONFIGURATION = Check(
    "configuration",
    "files, flags and keys: that they make one valid run, and what of it is hardly meant",
    "Correct the keys that it names: docs/configuration.md.",
)
PYTHON = Check(
    "Python",
    "its version, and every package against the versions that Equipoise asks for",
    "Start it with `uv run`, which installs what is needed.",
)
ENV_FILE = Check(
    ".env",
    "lines that cannot be read, who may read it, what gives way to variables set already",
    "Write one NAME=value a line, as in .env.example, and `chmod 600 .env`.",
)
TORCH = Check(
    "torch and driver",
    "the CUDA that torch was built for against what the driver supports; GPUs that torch sees",
    "Take a torch built for this driver's CUDA, or a newer driver: nvidia-smi shows its CUDA.",
)
GPUS = Check(
    "GPUs",
    "how many there are against the configuration, of this machine or of the Ray cluster",
    "Take a node with such GPUs, or --config nemo_configs/local.yaml for a CPU.",
)
MEMORY = Check(
    "memory",
    "memory of the GPUs, or of this machine, against the estimate for the configuration",
    "Lower policy.train_micro_batch_size, train a LoRA, or take larger or more GPUs.",
)
NEMO_RL = Check(
    "NeMo-RL",
    "absent, the placeholder of its name, another version, no Python of its own",
    f"Start it in NeMo-RL's container, or set NEMO_RL_PATH to a checkout of {RELEASE}.",
)
PACKAGES = Check(
    "NeMo-RL's packages",
    "its environments against its own uv.lock: what was changed since they were made, and "
    "Equipoise in them",
    "Start again from the image, or run `uv sync --locked` in NeMo-RL's folder.",
)
RAY = Check(
    "Ray",
    "Python and Ray of the driver against those of the workers' environments",
    "Remove the environments of other versions; NeMo-RL makes them again.",
)
SHARED_MEMORY = Check(
    "shared memory",
    "the size of /dev/shm, where Ray and NCCL keep what processes share",
    "Start the container with --shm-size=64g, or with --ipc=host.",
)
PORTS = Check(
    "ports",
    "that nobody listens where Ray's head node will",
    "End what listens there (`ss -ltnp` shows it), or give ray.sub other ports.",
)
RUN_DIRECTORY = Check(
    "run directory",
    "that it can be written to, and that the run's name is free",
    "Choose another folder with --output-dir, or another --run-name.",
)
CACHES = Check(
    "caches",
    "that equipoise.cache_dir, the Hub's cache and NeMo-RL's folders can be written to",
    "Choose another folder with equipoise.cache_dir=DIR, HF_HOME or the variable it names.",
)
DISK = Check(
    "disk",
    "free space for the checkpoints that the run keeps and for the models it loads",
    "Free some space, choose other folders, or lower checkpointing.keep_top_k.",
)
SHARED_FOLDERS = Check(
    "shared folders",
    "that every node of the Ray cluster, or of the Slurm job, sees what this one wrote",
    "Put the run directory and the caches on a file system that all nodes mount.",
)
WANDB = Check(
    "wandb",
    "whether runs are tracked, and that the server takes the key",
    "Take a new key from wandb.ai/authorize as WANDB_API_KEY in .env, or use --no-wandb.",
)
HUB = Check(
    "Hugging Face token",
    "that the hub takes the token, where there is one",
    "Make a new token on huggingface.co/settings/tokens, as HF_TOKEN in .env.",
)
MODEL = Check(
    "model",
    "a folder or a copy of the hub: weights, configuration, chat template; else the access to it",
    "Name a folder with a Hugging Face model, or a model on the hub, with --model-name.",
)
PARTS = Check(
    "parts of the task",
    "what its prompts and its reward need: that an index is of its source, that searches work",
    "Change equipoise.data or env in the configuration.",
)
PROMPTS = Check(
    "prompts",
    "the file and its hash, or how they are made; faults that no run can train on",
    "Correct the file, or let equipoise.data.module make the prompts.",
)
PREPARATION = Check(
    "preparing models",
    "that the models that the prompts need answer one question",
    "Check its address, name and key, and that it runs: docs/judge-client.md.",
)
REWARD = Check(
    "reward",
    "that what gives reward can be made: its settings, its rules, its keys",
    "Correct env in the configuration: docs/<task>.md.",
)
ANSWERS = Check(
    "models of the reward",
    "that each of them answers one question",
    "Check its address, name and key, and that it runs: docs/judge-client.md.",
)

#: In the order of the table.
CHECKS = (
    *(CONFIGURATION, PYTHON, ENV_FILE, TORCH, GPUS, MEMORY),
    *(NEMO_RL, PACKAGES, RAY, SHARED_MEMORY, PORTS),
    *(RUN_DIRECTORY, CACHES, DISK, SHARED_FOLDERS),
    *(WANDB, HUB, MODEL, PARTS, PROMPTS, PREPARATION, REWARD, ANSWERS),
)
