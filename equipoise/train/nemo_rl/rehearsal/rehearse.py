"""Runs a rehearsal: half of the steps, a stop with a checkpoint, the other half, a comparison."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from environments.base import TRAIN_SPLIT
from equipoise.config.schedule import total_steps
from equipoise.config.schema import GenerationConfig
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.run.history import read_history
from equipoise.run.job import Job, Watch
from equipoise.train.nemo_rl import engine
from equipoise.train.nemo_rl.history import latest_checkpoint
from equipoise.train.nemo_rl.recipe import Rehearsal
from equipoise.train.nemo_rl.scoring import MessageLog

NOTICE = """\
This is a rehearsal on this CPU: NeMo-RL's own loop, cluster, training workers, weight transfer and
checkpoints, with this task's prompts, environment and metrics, and a tiny model. gloo and the CPU
are in place of NCCL and CUDA, a Hugging Face model in place of vLLM. A scale that trains with
Megatron is rehearsed with DTensor's worker, one that generates asynchronously without that. The
result says nothing of any model. Not covered: see docs/nemo-rl.md#the-rehearsal.
"""
#: In nats: what two float32 implementations of one model may differ by, and much more.
TOLERANCE = 1e-3
#: As many of the last replies are compared.
_REPLIES = 64


def run(job: Job, watch: Watch) -> None:
    """Train as the configuration says, interrupted and resumed once in the middle.

    Raises `EquipoiseError` where training, generation and the exported model are not one policy.
    """
    job.run.ledger.update(rehearsal=True)
    job.reporter.say(NOTICE)
    steps, last = total_steps(len(job.split(TRAIN_SPLIT)), job.config), list[MessageLog]()
    if latest_checkpoint(job.run.checkpoints) is None and steps > 1:
        try:
            engine.run(job, watch, Rehearsal(lambda: _workers(job), stop_at=steps // 2))
        except Stopped:
            newest = latest_checkpoint(job.run.checkpoints)
            if newest is None or newest.step != steps // 2:
                raise
            job.reporter.say(f"stopped after step {newest.step} as a signal would, going on there")
    engine.run(job, watch, Rehearsal(lambda: _workers(job), at_end=last.extend))
    compare_policies(job, last[:_REPLIES])


@contextmanager
def _workers(job: Job) -> Iterator[None]:
    """Put the workers in place; imported when NeMo-RL can be."""
    from equipoise.train.nemo_rl.rehearsal.backend import cpu_workers

    with cpu_workers(job.config.cluster.gpus):
        yield


# --- one policy -----------------------------------------------------------------------------------


def compare_policies(job: Job, replies: Sequence[MessageLog]) -> None:
    """Say how far log-probabilities of the generation are from those of training and export.

    Training's are NeMo-RL's own figure of the last step. Raises `EquipoiseError` where they are not
    one policy.
    """
    run, sampling = job.run, job.config.policy.generation
    figures = {"training": read_history(run.history)["token_mult_prob_error"][-1] - 1}
    if not (replies and run.final_checkpoint.exists()):
        job.reporter.warn(f"{run.final_checkpoint.name} is not compared with what was generated")
    else:
        for side, model in exported_models(run.final_checkpoint, job.model_name):
            figures[side] = difference(model, replies, sampling)
    run.ledger.update(logprobs_differ_by=figures)
    sides = ", ".join(f"{side} {nats:.1e}" for side, nats in figures.items())
    job.reporter.say(f"logprobs differ from the generation's by: {sides}")
    worst = max(figures, key=figures.__getitem__)
    if not figures[worst] <= TOLERANCE:
        raise EquipoiseError(
            "rehearsal.other-logprobs",
            f"what is trained is not what is sampled or exported: logprobs of {worst} differ from "
            f"the generation's by {figures[worst]:.2g} nats, rounding makes no {TOLERANCE:g}",
            "Usually LoRA changes the head of a model whose head is its embeddings, as the tiny "
            "one's is: generation and merging leave that change out. Take "
            "exclude_modules=[lm_head] and match_all_linear=false in policy.dtensor_cfg.lora_cfg. "
            "Else see in nemo_rl.log which weights were sent and saved, and when.",
        )


def exported_models(folder: Path, base: str) -> Iterator[tuple[str, PreTrainedModel | PeftModel]]:
    """Yield the model of final_checkpoint/; an adapter beside `base`, and then merged into it."""

    def load(name: str) -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, trust_remote_code=False
        )
        return model

    if not (folder / "adapter_config.json").exists():
        yield folder.name, load(str(folder))
        return
    adapted = PeftModel.from_pretrained(load(base), folder)
    yield folder.name, adapted
    yield f"{folder.name} merged", adapted.merge_and_unload()


@torch.no_grad()
def difference(
    model: PreTrainedModel | PeftModel, replies: Sequence[MessageLog], sampling: GenerationConfig
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
        apart = (logprobs.squeeze(-1) - reply["generation_logprobs"]).abs().max()
        largest = max(largest, float(apart.nan_to_num(torch.inf)))
    return largest
