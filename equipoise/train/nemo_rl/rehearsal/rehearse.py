"""Runs a rehearsal: half of the steps, a stop with a checkpoint, the other half, a comparison."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from equipoise.config.schema import GenerationConfig
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.run.history import read_history
from equipoise.run.job import Job, Watch
from equipoise.run.ledger import Provenance
from equipoise.train.nemo_rl import engine
from equipoise.train.nemo_rl.history import latest_checkpoint
from equipoise.train.nemo_rl.recipe import NemoPolicy
from equipoise.train.nemo_rl.rehearsal.cpu import start_ray
from equipoise.train.nemo_rl.scoring import MessageLog

_LOG = logging.getLogger(__name__)
NOTICE = """\
This is a rehearsal on this CPU of NeMo-RL's own loop, with a tiny model: its result says nothing of
any model. What it replaces and what it does not cover is in docs/nemo-rl.md#the-rehearsal.
"""
_POLICY = "equipoise.train.nemo_rl.rehearsal.policy_worker.CpuPolicyWorker"
_GENERATION = "equipoise.train.nemo_rl.rehearsal.generation_worker.CpuGenerationWorker"
#: In nats: what two float32 implementations of one model may differ by, and much more.
TOLERANCE = 1e-3


@dataclass(slots=True)
class Rehearsal:
    """A run on this CPU, and replies of its trained policy, for `compare_policies`."""

    job: Job
    replies: Sequence[MessageLog] = ()

    def announce(self) -> None:
        """Say in the run and in its log that it is a rehearsal."""
        self.job.run.ledger.update(Provenance(rehearsal=True))
        _LOG.info(NOTICE)

    @contextmanager
    def open_policy(self, watch: Watch) -> Iterator[NemoPolicy]:
        """Start NeMo-RL on CPU workers. The first time training is stopped in the middle."""
        job, half = self.job, self.job.steps // 2
        if latest_checkpoint(job.run.checkpoints):
            half = 0
        workers = cpu_workers(job.config.cluster.gpus)
        try:
            with engine.open_policy(job, watch, workers, half or None) as policy:
                yield policy
                self.replies = policy.last[:64]
        except Stopped:
            newest = latest_checkpoint(job.run.checkpoints)
            if not half or newest is None or newest.step != half:
                raise
            _LOG.info(f"stopped after step {half} as a signal would, going on there")


@contextmanager
def cpu_workers(gpus: int) -> Iterator[None]:
    """Have NeMo-RL start a Ray that believes in `gpus` GPUs, with workers that run on the CPU.

    A Ray that RAY_ADDRESS names is joined as NeMo-RL does.
    """
    from nemo_rl.distributed import ray_actor_environment_registry, virtual_cluster
    from nemo_rl.models.generation.vllm import vllm_generation
    from nemo_rl.models.policy import lm_policy

    joins = "RAY_ADDRESS" in os.environ
    reach_ray = virtual_cluster.init_ray if joins else partial(start_ray, gpus)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # all workers would get it, and Ray count by it
    pythons = dict.fromkeys((_POLICY, _GENERATION), virtual_cluster.PY_EXECUTABLES.SYSTEM)
    ray_actor_environment_registry.ACTOR_ENVIRONMENT_REGISTRY.update(pythons)
    with (
        mock.patch.object(lm_policy, "resolve_policy_worker_cls", lambda *_: _POLICY),
        mock.patch.object(vllm_generation, "resolve_generation_worker_cls", lambda *_: _GENERATION),
        mock.patch.object(virtual_cluster, "init_ray", reach_ray),
    ):
        yield


def compare_policies(job: Job, replies: Sequence[MessageLog]) -> None:
    """Say how far log-probabilities of the generation are from those of training and export.

    Training's are NeMo-RL's own figure of the last step. Raises `EquipoiseError` where they are not
    one policy.
    """
    run = job.run
    figures = {"training": read_history(run.history)["token_mult_prob_error"][-1] - 1}
    if not (replies and run.final_checkpoint.exists()):
        _LOG.warning(f"{run.final_checkpoint.name} is not compared with what was generated")
    else:
        # An adapter comes with the model that it names.
        exported = AutoModelForCausalLM.from_pretrained(
            run.final_checkpoint, dtype=torch.float32, trust_remote_code=False
        )
        sampling = job.config.policy.generation
        figures[run.final_checkpoint.name] = difference(exported, replies, sampling)
    run.ledger.update(Provenance(logprobs_differ_by=figures))
    sides = ", ".join(f"{side} {nats:.1e}" for side, nats in figures.items())
    _LOG.info(f"logprobs differ from the generation's by: {sides}")
    worst = max(figures, key=figures.__getitem__)
    if not figures[worst] <= TOLERANCE:
        raise EquipoiseError(
            "rehearsal.other-logprobs",
            f"what is trained is not what is sampled or exported: logprobs of {worst} differ from "
            f"the generation's by {figures[worst]:.2g} nats, rounding makes no {TOLERANCE:g}",
            "Usually LoRA changes a head that is the model's embeddings, which generation leaves "
            "out: take policy.dtensor_cfg.lora_cfg.exclude_modules=[lm_head] and "
            "match_all_linear=false there. Else nemo_rl.log says which weights were sent.",
        )


@torch.no_grad()
def difference(
    model: PreTrainedModel, replies: Sequence[MessageLog], sampling: GenerationConfig
) -> float:
    """Return the largest difference from the generation's log-probabilities, in nats."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    largest = 0.0
    for prompt, reply, *_ in replies:
        tokens: Any = reply["token_ids"]
        ids = torch.cat((prompt["token_ids"], tokens))[None]
        logits = model.eval()(input_ids=ids).logits[0, -len(tokens) - 1 : -1].float()
        logprobs = torch.log_softmax(warpers(None, logits), -1).gather(-1, tokens[:, None])
        distance = (logprobs.squeeze(-1) - reply["generation_logprobs"]).abs().max()
        largest = max(largest, float(distance.nan_to_num(torch.inf)))
    return largest
