"""The local engine: TRL on a CPU or one GPU, from the frozen model to the evaluated result."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from data_prep.files import hash_file, write_text
from data_prep.records import content_hash
from environments.base import NeedsReference, PromptRecord, Rollout
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.engines.local.generation import Sampling, sample
from equipoise.models.causal import LoadedModel, load_model, load_trained
from equipoise.models.pretrained import control_tokens
from equipoise.run.kept_files import keep_files
from equipoise.run.ownership import confirm_owner
from equipoise.run.provenance import keep_hash, update_provenance
from equipoise.run.rollouts import read_rollouts, write_rollouts
from equipoise.run.seals import is_whole, seal_file
from equipoise.stages.job import Job, keep_evaluation, refuse_without_signal
from equipoise.stages.prompts import refuse_control_tokens

#: Offsets that keep the random streams of a run's stages apart.
_REFERENCE_SEED, _EVALUATION_SEED = 1, 2


def prepare(
    config: Config, records: Sequence[PromptRecord], model_name: str
) -> Callable[[Job], None]:
    """Load the model. Returns what runs a job with it; raises `EquipoiseError`.

    Prompts that hold the model's control tokens are refused.
    """
    _quiet_libraries()
    torch.set_num_threads(config.equipoise.threads or torch.get_num_threads())
    device = choose_device(config.equipoise.device)
    loaded = load_policy(config, model_name, device)
    refuse_control_tokens(records, control_tokens(loaded.tokenizer))
    return partial(run, loaded=loaded)


def run(job: Job, loaded: LoadedModel) -> None:
    """Do every stage that the run directory does not hold yet."""
    device = loaded.model.device
    say_precision(job, device)
    keep_hash(job.run.provenance, "model", loaded.identity)
    update_provenance(job.run.provenance, {"device": str(device)})
    keep_reference(job, loaded)
    if not job.run.evaluation("baseline").exists():
        evaluate_stage(job, "baseline", loaded)
    if not job.run.final_checkpoint.exists():
        refuse_without_signal(job)
        # TRL takes seconds to import, and what comes before training needs none of it.
        from equipoise.engines.local.training import train

        train(job, loaded)
    if not job.run.evaluation("final").exists():
        evaluate_stage(job, "final", load_trained(loaded, job.run.final_checkpoint, device))


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA where it is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def say_precision(job: Job, device: torch.device) -> None:
    """Say where the configuration's precision is not the one that is used."""
    if device.type == "cpu" and job.config.policy.precision == "bfloat16":
        job.reporter.say("on a CPU the local engine computes in float32, not in bfloat16")


def load_policy(config: Config, model_name: str, device: torch.device) -> LoadedModel:
    """The model to train.

    With bfloat16, full fine-tuning keeps float32 weights under autocast, since small updates
    vanish in bfloat16 weights; LoRA leaves the base frozen, which may then be bfloat16.
    """
    policy = config.policy
    half = policy.precision == "bfloat16" and policy.dtensor_cfg.lora_cfg.enabled
    dtype = torch.bfloat16 if half and device.type == "cuda" else torch.float32
    tokenizer = policy.tokenizer.name if policy.model_name != LOCAL_MODEL else model_name
    return load_model(model_name, tokenizer, dtype=dtype, device=device)


def keep_reference(job: Job, loaded: LoadedModel) -> None:
    """Hand the frozen model's rollouts to an environment that needs them; draw them only once."""
    environment = job.environment
    if not isinstance(environment, NeedsReference):
        return
    if not job.run.reference.exists():
        with job.timed("reference"):
            cached = cached_reference(job, loaded, environment.reference_generations)
            confirm_owner(job.run.root)
            write_text(job.run.reference, cached.read_text(encoding="utf-8"))
        keep_files(job.run, job.run.reference)
    rollouts = read_rollouts(job.run.reference)
    keep_hash(job.run.provenance, "reference", hash_file(job.run.reference))
    environment.set_reference(rollouts)


def cached_reference(job: Job, loaded: LoadedModel, generations: int) -> Path:
    """The cache's file of the frozen model's rollouts on all prompts, drawn when it is new."""
    seed = job.config.grpo.seed + _REFERENCE_SEED
    sampling = replace(_sampling(job.config, seed), generations=generations)
    parts = (loaded.identity, content_hash(job.records), repr(sampling))
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path = Path(job.config.equipoise.cache_dir).expanduser() / f"reference-{key}.jsonl"
    if not is_whole(path):
        job.reporter.heading("Reference: what the frozen model decides")
        write_rollouts(path, _sample(job, loaded, job.records, sampling, "reference"))
        seal_file(path)
    return path


def evaluate_stage(job: Job, stage: str, loaded: LoadedModel) -> None:
    """Sample the evaluation split, score it and keep the result."""
    job.reporter.heading(f"{stage} evaluation")
    evaluation = job.config.equipoise.evaluation
    sampling = replace(
        _sampling(job.config, evaluation.seed + _EVALUATION_SEED),
        generations=evaluation.generations,
    )
    with job.timed(stage):
        records = job.split(evaluation.split)
        keep_evaluation(job, stage, lambda: _sample(job, loaded, records, sampling, stage))


def _sampling(config: Config, seed: int) -> Sampling:
    generation = config.policy.generation
    return Sampling(
        generations=1,
        max_new_tokens=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        batch_size=config.equipoise.evaluation.batch_size,
        seed=seed,
    )


def _sample(
    job: Job,
    loaded: LoadedModel,
    records: Sequence[PromptRecord],
    sampling: Sampling,
    label: str,
) -> list[Rollout]:
    with job.reporter.progress(label, len(records) * sampling.generations) as bar:
        return sample(loaded, records, sampling, bar, job.meter.add_tokens)


def _quiet_libraries() -> None:
    """Keep warnings of transformers from the terminal; equipoise.log has them."""
    for handler in logging.getLogger("transformers").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
