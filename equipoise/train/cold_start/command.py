"""`equipoise cold-start`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from dotenv import load_dotenv
from tyro.conf import Positional

from data_prep.packaged_models import SMOLLM2
from data_prep.warm_start import Example
from equipoise.config import LOCAL_MODEL, LoadedConfig, load_config
from equipoise.config.flags import check_task
from equipoise.config.training_words import Training, TrainingWords
from equipoise.errors import UsageError
from equipoise.machine.software import refuse_missing_gpu
from equipoise.models.hub import located, refuse_missing_model, refuse_missing_package
from equipoise.models.libraries import prepare_torch
from equipoise.run.prompts import make_prompts, prepare_task, prompts_here
from equipoise.run.seals import COPY, check_part
from equipoise.terminal.console import Column, Reporter
from equipoise.terminal.options import Destination, option
from equipoise.train.cold_start.examples import find_examples


@dataclass(frozen=True, slots=True)
class ColdStartOptions:
    """Teach a model a task's form of reply, before GRPO.

    Supervised fine-tuning of a LoRA on replies to imitate, merged into the model. The replies are
    the invented ones of the task's local model, or those of a file (equipoise.cold_start.replies).
    Prompts, seed, LoRA and precision are those of training with the same words, so that no prompt
    of its evaluation is shown.

    With --dry-run nothing is loaded, trained or written.

    Examples:
        equipoise cold-start TASK my-start --model-name Qwen/Qwen2.5-0.5B-Instruct
        equipoise cold-start TASK my-start --config mine.yaml equipoise.cold_start.examples=500
        equipoise train TASK --config mine.yaml policy.model_name=my-start
    """

    task: Annotated[str, Positional, option("as for training", "TASK")]
    destination: Destination
    training: Training = field(default_factory=TrainingWords)


def run(options: ColdStartOptions, reporter: Reporter) -> None:
    """Train and save. Raises `EquipoiseError`."""
    words = options.training.as_options()
    of_runs = ("resume", "rehearse", "planner_only", "ask")
    if named := [f"--{name.replace('_', '-')}" for name in of_runs if getattr(words, name)]:
        raise UsageError(
            "cold-start.run-options", f"a cold start is no run: leave out {', '.join(named)}", ""
        )
    check_task(options.task)
    load_dotenv(Path.cwd() / ".env")
    loaded = load_config(options.task, words)
    if loaded.config.policy.model_name == LOCAL_MODEL:
        raise UsageError(
            "cold-start.local-model",
            "the local model has learnt its task's form of reply when it is made",
            "Name another one with --model-name.",
        )
    destination = options.destination
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(
            "cold-start.existing-folder", f"{destination} exists already", "Name a new folder."
        )
    if words.dry_run:
        _dry_run(loaded, destination, reporter)
        return
    if loaded.config.policy.model_name != SMOLLM2:
        refuse_missing_model(loaded.config.policy.model_name)
    refuse_missing_gpu(loaded.config)
    prepare_torch(loaded.config.equipoise.threads)
    with reporter.progress("preparing what the prompts need"):
        prepare_task(loaded, reporter.say)
    _train(loaded, destination, reporter)


def _dry_run(loaded: LoadedConfig, destination: Path, reporter: Reporter) -> None:
    """Show what would be imitated, for how long, and by what."""
    config, settings = loaded.config, loaded.config.equipoise.cold_start
    refuse_missing_package(config.policy.model_name)
    prepare_task(loaded, reporter.say, dry_run=True)
    examples = find_examples(loaded, prompts_here(loaded))
    lora = config.policy.dtensor_cfg.lora_cfg
    rows = [
        ("model", config.policy.model_name, f"LoRA, rank {lora.dim}, merged"),
        ("replies", f"{len(examples):,}", settings.replies or "invented by the task"),
        ("steps", f"{settings.steps:,}", f"of {settings.batch_size:,} replies"),
        ("learning rate", f"{settings.learning_rate:g}", "down to zero"),
        ("model written", str(destination), "a new folder"),
    ]
    columns = [Column(name, folds=True) for name in ("what", "figure", "note")]
    reporter.table("What would run", columns, rows)
    _show_first(examples, reporter)


def _train(loaded: LoadedConfig, destination: Path, reporter: Reporter) -> None:
    # torch and TRL take seconds to import; a mistake should not wait for them.
    from equipoise.train.cold_start.train import save, train
    from equipoise.train.local.engine import open_policy

    config = loaded.config
    records = make_prompts(loaded)
    examples = find_examples(loaded, records)
    with reporter.progress("loading the model"):
        check_part(Path(config.policy.model_name), otherwise=COPY)
        name = located(config.policy.model_name, config.equipoise.cache_dir)
        model = open_policy(config, records, name)
    _show_first(examples, reporter)
    with reporter.progress("imitating", config.equipoise.cold_start.steps) as done:
        trained = train(model, examples, config, done)
    save(trained, examples, config, destination)
    losses = list(trained.losses.values())
    reporter.say(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    reporter.say(f"model: {destination}")
    reporter.say(f"train it with policy.model_name={destination}")


def _show_first(examples: Sequence[Example], reporter: Reporter) -> None:
    reporter.say(f"cold start: {len(examples)} replies; the first one to")
    reporter.say(f"  {examples[0].messages[-1]['content']}")
    reporter.say(f"  -> {examples[0].answer}")
