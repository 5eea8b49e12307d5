"""The local engine: TRL on a CPU or one GPU, from the frozen model to the evaluated result."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging
from trl import GRPOTrainer

from data_prep.files import hash_file, write_folder, write_text
from data_prep.records import content_hash
from environments.base import NeedsReference, PromptRecord, Rollout
from equipoise.config.dry_run import total_steps
from equipoise.config.schema import Config
from equipoise.console import StepPrinter
from equipoise.engines.failures import FailureMonitor
from equipoise.engines.local.callbacks import CheckpointCallback, HistoryCallback, StopCallback
from equipoise.engines.local.checkpoints import latest_checkpoint
from equipoise.engines.local.generation import Sampling, render_prompt, sample
from equipoise.engines.local.history import Row, keep_steps
from equipoise.engines.local.model import LoadedModel, load_model, load_trained
from equipoise.engines.local.reward import reward_function
from equipoise.engines.local.trainer import build_trainer
from equipoise.interrupts import Stopped, deferring
from equipoise.job import Job, keep_evaluation
from equipoise.provenance import update_provenance
from equipoise.rollout_files import read_rollouts, write_rollouts
from equipoise.tracking import Tracker

#: Offsets that keep the random streams of a run's stages apart.
_REFERENCE_SEED, _EVALUATION_SEED = 1, 2
_STOPPING = "stopping after this step, with a checkpoint; again to stop at once"


def run_local(job: Job) -> None:
    """Do every stage that the run directory does not hold yet."""
    _quiet_libraries()
    torch.set_num_threads(job.config.equipoise.threads or torch.get_num_threads())
    device = choose_device(job.config.equipoise.device)
    loaded = load_policy(job.config, job.model_name, device)
    update_provenance(
        job.run.provenance, {"device": str(device), "hashes": {"model": loaded.fingerprint}}
    )
    keep_reference(job, loaded)
    if not job.run.evaluation("baseline").exists():
        evaluate_stage(job, "baseline", loaded)
    if not job.run.final_checkpoint.exists():
        train(job, loaded)
    if not job.run.evaluation("final").exists():
        evaluate_stage(job, "final", load_trained(loaded, job.run.final_checkpoint, device))


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA where it is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def load_policy(config: Config, model_name: str, device: torch.device) -> LoadedModel:
    """The model to train.

    With bfloat16, full fine-tuning keeps float32 weights under autocast, since small updates
    vanish in bfloat16 weights; LoRA leaves the base frozen, which may then be bfloat16.
    """
    policy = config.policy
    half = policy.precision == "bfloat16" and policy.dtensor_cfg.lora_cfg.enabled
    dtype = torch.bfloat16 if half and device.type == "cuda" else torch.float32
    tokenizer = policy.tokenizer.name if policy.model_name != "local" else model_name
    return load_model(model_name, tokenizer, dtype=dtype, device=device)


def keep_reference(job: Job, loaded: LoadedModel) -> None:
    """Hand the frozen model's rollouts to an environment that needs them; draw them only once."""
    environment = job.environment
    if not isinstance(environment, NeedsReference):
        return
    if not job.run.reference.exists():
        with job.timed("reference"):
            cached = cached_reference(job, loaded, environment.reference_generations)
            write_text(job.run.reference, cached.read_text(encoding="utf-8"))
    rollouts = read_rollouts(job.run.reference)
    update_provenance(job.run.provenance, {"hashes": {"reference": hash_file(job.run.reference)}})
    environment.set_reference(rollouts)


def cached_reference(job: Job, loaded: LoadedModel, generations: int) -> Path:
    """The cache's file of the frozen model's rollouts on all prompts, drawn when it is new."""
    seed = job.config.grpo.seed + _REFERENCE_SEED
    sampling = replace(_sampling(job.config, seed), generations=generations)
    parts = (loaded.fingerprint, content_hash(job.records), repr(sampling))
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path = Path(job.config.equipoise.cache_dir).expanduser() / f"reference-{key}.jsonl"
    if not path.exists():
        job.reporter.heading("Reference: what the frozen model decides")
        write_rollouts(path, _sample(job, loaded, job.records, sampling, "reference"))
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
        keep_evaluation(job, stage, _sample(job, loaded, records, sampling, stage))


def train(job: Job, loaded: LoadedModel) -> None:
    """GRPO through TRL, resumed from the newest complete checkpoint, then the final checkpoint."""
    config, run = job.config, job.run
    steps = total_steps(len(job.split("train")), config)
    checkpoint = latest_checkpoint(run.checkpoints)
    done = checkpoint.step if checkpoint else 0
    keep_steps(run.history, done)
    job.reporter.heading(f"GRPO training, {steps} steps")
    monitor = FailureMonitor(config.equipoise.max_failure_rate, config.equipoise.failure_window)
    with (
        job.timed("training"),
        deferring(lambda: job.reporter.warn(_STOPPING)) as stop,
        _watching(job, steps, done) as on_row,
    ):
        history = HistoryCallback(run.history, on_row)
        callbacks = [history, CheckpointCallback(), StopCallback(monitor, stop)]
        set_seed(config.grpo.seed)
        trainer = _trainer(job, loaded, monitor, history, callbacks)
        set_seed(config.grpo.seed)
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    if monitor.exceeded:
        raise monitor.error()
    if trainer.state.global_step < steps:
        raise Stopped
    write_folder(run.final_checkpoint, lambda folder: _save(trainer.model, loaded, folder))


@contextmanager
def _watching(job: Job, steps: int, done: int) -> Iterator[Callable[[Row], None]]:
    """Yields what shows a step to the user and to the tracker."""
    printer = StepPrinter(job.reporter, steps, done)
    with (
        Tracker(job.config, job.run.root, job.run_id) as tracker,
        job.reporter.bar("training", steps, done) as bar,
    ):

        def on_row(row: Row) -> None:
            printer(row)
            tracker.log(row)
            bar(int(row["step"] or 0))

        yield on_row


def _trainer(
    job: Job,
    loaded: LoadedModel,
    monitor: FailureMonitor,
    history: HistoryCallback,
    callbacks: Sequence[TrainerCallback],
) -> GRPOTrainer:
    records = job.split("train")
    prompts = [render_prompt(loaded.tokenizer, record) for record in records]
    reward = reward_function(job.environment, records, prompts, monitor, history.record)
    return build_trainer(loaded, records, reward, job.config, job.run.checkpoints, callbacks)


def _save(model: torch.nn.Module, loaded: LoadedModel, folder: Path) -> None:
    model.save_pretrained(folder)  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(folder)


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
        return sample(loaded, records, sampling, bar)


def _quiet_libraries() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
