"""Runs a rehearsal: half of the steps, a stop with a checkpoint, the other half."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from environments.base import TRAIN_SPLIT
from equipoise.config import Config
from equipoise.config.schedule import total_steps
from equipoise.files.exits import Stopped
from equipoise.run.job import Job, Watch
from equipoise.train.nemo_rl.checkpoints import latest_checkpoint
from equipoise.train.nemo_rl.engine import run as run_nemo_rl
from equipoise.train.nemo_rl.recipe import Rehearsal
from equipoise.train.nemo_rl.rehearsal.comparison import compare_policies, rollouts_file
from equipoise.train.nemo_rl.rehearsal.shrink import on_gpus

NOTICE = """\
This is a rehearsal on this CPU: NeMo-RL's own loop, cluster, training workers, weight transfer and
checkpoints, with this task's prompts, environment and metrics, and a tiny model. gloo and the CPU
are in place of NCCL and CUDA, a Hugging Face model in place of vLLM. A scale that trains with
Megatron is rehearsed with DTensor's worker, one that generates asynchronously without that.
The result says nothing of any model; its last line says what was not covered.
"""
NOTICE_ON_GPUS = """\
This is a rehearsal on GPUs: NeMo-RL's own loop, cluster, workers, vLLM, weight transfer and
checkpoints, with this task's prompts, environment and metrics, and a tiny model. A scale that
trains with Megatron is rehearsed with DTensor's worker. The authors never ran one on GPUs. The
result says nothing of any model; its last line says what was not covered.
"""


def run(job: Job, watch: Watch) -> None:
    """Train as the configuration says, interrupted and resumed once in the middle.

    Raises `EquipoiseError` where training, generation and the exported model are not one policy.
    """
    job.run.ledger.update({"rehearsal": True})
    job.reporter.say(NOTICE_ON_GPUS if on_gpus() else NOTICE)
    steps = total_steps(len(job.split(TRAIN_SPLIT)), job.config)
    if latest_checkpoint(job.run.checkpoints) is None and steps > 1:
        _first_half(job, watch, steps // 2)
    run_nemo_rl(job, watch, Rehearsal(lambda: _workers(job), at_end=partial(_keep_rollouts, job)))
    compare_policies(job, exact=not on_gpus())
    job.reporter.say(f"not covered: {', '.join(not_covered(job.config))}; see docs/nemo-rl.md")


def not_covered(config: Config) -> Iterator[str]:
    """Yield the parts of training on GPUs that took no part here."""
    policy = config.policy
    if not on_gpus():
        yield "CUDA and the kernels for it (FlashAttention, Triton's), NCCL, memory and speed"
        yield "vLLM"
    if policy.precision != "bfloat16":
        yield "bfloat16"
    if on_gpus() and not policy.sequence_packing.enabled:
        yield "sequence packing"
    if policy.dtensor_cfg.tensor_parallel_size == 1:
        yield "tensor parallelism"
    yield "context and pipeline parallelism"
    yield "asynchronous generation"
    yield "Megatron's worker"
    yield "more than one node"


def _first_half(job: Job, watch: Watch, steps: int) -> None:
    try:
        run_nemo_rl(job, watch, Rehearsal(lambda: _workers(job), stop_at=steps))
    except Stopped:
        newest = latest_checkpoint(job.run.checkpoints)
        if newest is None or newest.step != steps:
            raise
        job.reporter.say(f"stopped after step {steps} as a signal would, going on from there")


@contextmanager
def _workers(job: Job) -> Iterator[None]:
    """Put the workers in place; imported when NeMo-RL can be."""
    from equipoise.train.nemo_rl.rehearsal.backend import cpu_workers, use_this_python

    if on_gpus():
        use_this_python()
        yield
    else:
        with cpu_workers(job.config.cluster.gpus):
            yield


def _keep_rollouts(job: Job, policy: Any, output: Any) -> None:
    from equipoise.train.nemo_rl.rehearsal.backend import keep_rollouts

    keep_rollouts(rollouts_file(job.run.root), policy, output)
