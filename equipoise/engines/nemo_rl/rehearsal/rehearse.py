"""Runs a rehearsal: half of the steps, a stop with a checkpoint, the other half."""

import importlib
from contextlib import AbstractContextManager

from equipoise.config.dry_run import total_steps
from equipoise.engines.nemo_rl.checkpoints import latest_checkpoint
from equipoise.engines.nemo_rl.engine import Rehearsal
from equipoise.engines.nemo_rl.engine import run as run_nemo_rl
from equipoise.interrupts import Stopped
from equipoise.job import Job
from equipoise.provenance import update_provenance

NOTICE = """\
This is a rehearsal: NeMo-RL's own set-up, loop, loss, validation and checkpoints, with this task's
prompts, environment and metrics, on this CPU. A tiny model stands in for the policy, so what does
not run is vLLM, DTensor and Megatron workers, refit between them, sequence packing and bfloat16;
and its result says nothing of any model.
"""


def run(job: Job) -> None:
    """Train as the configuration says, interrupted and resumed once in the middle."""
    update_provenance(job.run.provenance, {"rehearsal": True})
    job.reporter.say(NOTICE)
    steps = total_steps(len(job.split("train")), job.config)
    if latest_checkpoint(job.run.checkpoints) is None and steps > 1:
        _first_half(job, steps // 2)
    run_nemo_rl(job, Rehearsal(lambda: _cpu_backend(job)))


def _first_half(job: Job, steps: int) -> None:
    try:
        run_nemo_rl(job, Rehearsal(lambda: _cpu_backend(job), stop_after=steps))
    except Stopped:
        newest = latest_checkpoint(job.run.checkpoints)
        if newest is None or newest.step != steps:
            raise
        job.reporter.say(f"stopped after step {steps} as a signal would, going on from there")


def _cpu_backend(job: Job) -> AbstractContextManager[None]:
    """Imported when NeMo-RL can be."""
    backend = importlib.import_module("equipoise.engines.nemo_rl.rehearsal.backend")
    context: AbstractContextManager[None] = backend.cpu_workers(job.config.cluster.gpus_per_node)
    return context
