"""The start of training, before its pipeline: validate everything, show it, reach the engine."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from environments.contract import Environment
from equipoise.commands.doctor import compare_plan, refuse_unfit
from equipoise.commands.doctor.checks import Case
from equipoise.commands.doctor.machine import installation
from equipoise.commands.log import kept_log
from equipoise.config import LOCAL_MODEL, LoadedConfig, Options, load_config
from equipoise.config.memory import (
    layout_of,
    local_bytes,
    lora_rank,
    memory_of,
    trained_parameters,
    vllm_share,
)
from equipoise.config.schedule import Workload, generations, total_generations, workload_of
from equipoise.config.schema import Config, Engine
from equipoise.files.console import Column, Reporter
from equipoise.files.disk import in_gb, write_text
from equipoise.files.errors import UsageError
from equipoise.files.hub import prepare_torch, refuse_missing_package
from equipoise.files.model_shape import model_shape
from equipoise.files.nemo_rl import find_installation, hand_over, is_launched
from equipoise.run.directory import (
    NewRun,
    RunDirectory,
    model_label,
    open_run_directory,
    usable_folder,
)
from equipoise.run.job import check_environment
from equipoise.run.ledger import owning
from equipoise.run.probe import unsampled_replies
from equipoise.run.start import check_resume
from equipoise.run.task import (
    check_steps,
    make_environment,
    prepare_task,
    prompts_here,
    provide_models,
)
from equipoise.train.nemo_rl.rehearsal.shrink import rehearsal_config


def run(task: str, options: Options, reporter: Reporter) -> None:
    """Validate everything, then show what would run, or run it."""
    loaded = load_config(task, options)
    label = model_label(loaded.config.policy.model_name)
    rehearse = options.rehearse
    if options.resume:  # a rehearsal is resumed as one
        rehearse |= open_run_directory(options.resume).ledger.read().rehearsal
        check_resume(loaded)
    elif rehearse:
        loaded, label = rehearsal_config(task, options, loaded), f"{label}-rehearsal"
    usable_folder(Path(loaded.config.equipoise.cache_dir).expanduser(), "equipoise.cache_dir=DIR")
    if options.dry_run:
        announce(loaded, reporter)
        dry_run(loaded, label, reporter, ask=options.ask)
        if not rehearse:
            case = Case(loaded, online=options.ask, purpose="plan")
            compare_plan(case, reporter.warn, reporter.say)
        return
    if options.planner_only:
        announce(loaded, reporter)
        if not loaded.prepares:
            reporter.warn(f"--planner-only does nothing here: {task} needs no index and no plans")
        prepare_task(loaded, reporter.say)
        return
    if options.probe_only and loaded.engine == "nemo_rl":
        raise UsageError(
            "probe.other-engine",
            "the probe alone samples on one GPU or a CPU, with the local engine",
            "Give --engine local. A run on NeMo-RL has its probe before its first step.",
        )
    directory = run_directory(loaded, options, label)
    prepare_torch(loaded.config.equipoise.threads)
    with kept_log(reporter) as log_to:
        reach_engine(loaded, reporter, rehearse=rehearse)
        announce(loaded, reporter)
        with owning(options.resume) if options.resume else nullcontext():
            # torch and transformers take seconds to import; a mistake should not wait for them.
            from equipoise.commands.stages import run_pipeline

            run_pipeline(
                loaded,
                directory,
                reporter,
                log_to,
                rehearse=rehearse,
                probe_only=options.probe_only,
            )


def reach_engine(loaded: LoadedConfig, reporter: Reporter, *, rehearse: bool) -> None:
    """Refuse an engine that is not there. For NeMo-RL's the process goes on in NeMo-RL's Python."""
    if loaded.engine == "nemo_rl" and rehearse:
        find_installation()
        return
    case = Case(loaded, purpose="start")
    if loaded.engine == "nemo_rl" and not is_launched():
        hand_over(installation(case).root)
    refuse_unfit(case, reporter.warn)


def announce(loaded: LoadedConfig, reporter: Reporter) -> None:
    """Log what is about to run, and which keys are ignored."""
    config = loaded.config
    reporter.say(
        f"Equipoise: task {config.equipoise.task}, engine {loaded.engine}, "
        f"model {config.policy.model_name}"
    )
    for name, file in loaded.own_code():
        reporter.say(f"code of your own: {name} of {file}")
    for warning in loaded.warnings:
        reporter.warn(warning)
    stand_in = loaded.env_settings.stand_in
    if stand_in and config.policy.model_name != LOCAL_MODEL:
        reporter.warn(stand_in)


def run_directory(loaded: LoadedConfig, options: Options, label: str) -> RunDirectory | NewRun:
    """The directory to resume, or where a new run will be kept, which is there and free."""
    if options.resume:
        return open_run_directory(options.resume)
    settings = loaded.config.equipoise
    started = datetime.now().astimezone()
    new_run = NewRun(Path(settings.output_dir) / settings.task, settings.run_name, label, started)
    new_run.check()
    return new_run


# --- dry run --------------------------------------------------------------------------------------


def dry_run(loaded: LoadedConfig, label: str, reporter: Reporter, *, ask: bool = False) -> None:
    """Print the plan and write the resolved configuration; load no model, train nothing.

    With `ask` what prepares prompts and gives reward is asked one question.
    """
    settings = loaded.config.equipoise
    folder = Path(settings.output_dir) / settings.task
    usable_folder(folder, "--output-dir")
    refuse_missing_package(loaded.config.policy.model_name)
    prepare_task(loaded, reporter.say, dry_run=True, ask=ask)
    if ask:
        ask_environment(loaded, reporter)
    records = prompts_here(loaded)
    check_steps(loaded, records)
    scoring = loaded.env_settings
    blinds = loaded.environment_class.offers(Environment.blinded)
    workload = workload_of(records, loaded.set_size, scoring.reference_size, blinds=blinds)
    rows = dry_run_rows(loaded.config, loaded.engine, workload)
    generations = total_generations(loaded.config, loaded.engine, workload)
    scored = generations + unsampled_replies(loaded.config, workload)
    if calls := scoring.model_calls(records, scored):
        note = "of other models; equal ones are asked once"
        rows.append(Row("model calls", f"<= {calls:,}", note))
    columns = [Column(name, folds=True) for name in ("what", "figure", "note")]
    reporter.table("What would run", columns, rows)
    path = folder / f"{settings.run_name or label}.dry-run.yaml"
    write_text(path, loaded.to_yaml())
    reporter.say(f"resolved configuration: {path}")


def ask_environment(loaded: LoadedConfig, reporter: Reporter) -> None:
    """Ask each model that gives reward one question, and log that it answers."""
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    provide_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter.progress)
    reporter.say("what gives reward answers")


class Row(NamedTuple):
    """One line of the table; `note` says how the value comes about."""

    label: str
    value: str
    note: str = ""


def dry_run_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    """The table of `--dry-run`: where it runs, the data, a step, and all that is generated."""
    policy, lora = config.policy, config.policy.dtensor_cfg.lora_cfg
    backend = "Megatron, " if policy.megatron_cfg.enabled else ""
    where = config.equipoise.device if engine == "local" else config.cluster.machines
    trained = f"LoRA, rank {lora.dim}, alpha {lora.alpha}" if lora.enabled else "all weights"
    rows = [
        Row("engine", engine, where),
        Row("model", policy.model_name, f"{policy.precision}, {backend}{trained}"),
    ]
    for split, prompts in workload.prompts.items():
        note = _sets(workload.sets[split], prompts)
        rows.append(Row(f"{split} prompts", f"{prompts:,}", note))
    rows += [*_step_rows(config, engine, workload), *_total_rows(config, engine, workload)]
    if engine == "nemo_rl":
        return [*rows, *_gpu_rows(config)]
    if shape := model_shape(policy.model_name):
        gpu = config.equipoise.device != "cpu"
        minimum = local_bytes(config, shape, gpu=gpu)
        note = f"weights, gradients, optimizer; on a {'GPU' if gpu else 'CPU'}"
        rows.append(Row("memory, at least", in_gb(minimum, 1), note))
    return rows


def _sets(sets: int, prompts: int) -> str:
    plural = "" if sets == 1 else "s"
    return f"{sets:,} set{plural} of {prompts // sets}" if sets < prompts else ""


def _step_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    grpo, policy = config.grpo, config.policy
    prompts, generations = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    rollouts, batch = grpo.rollouts_per_step, policy.train_global_batch_size
    length, reply_tokens = policy.max_total_sequence_length, policy.generation.max_new_tokens
    ranks = layout_of(config).data_parallel if engine == "nemo_rl" else 1
    share, micro = batch // ranks, policy.train_micro_batch_size
    batches, note = f"{share // micro:,}", f"of {micro:,} rollouts"
    if policy.batches_by_length:  # how many there are depends on the lengths
        batches = f"<= {share:,}"
        note = f"{share:,} rollouts in batches of <= {micro * length:,} tokens"
    new_tokens = f"<= {rollouts * reply_tokens:,}"
    return [
        Row("prompts per step", f"{prompts:,}", _sets(prompts // workload.set_size, prompts)),
        Row("rollouts per step", f"{rollouts:,}", f"{generations} generations per prompt"),
        Row("updates per step", f"{rollouts // batch:,}", f"of {batch:,} rollouts"),
        Row(f"micro batches per {'rank' if ranks > 1 else 'update'}", batches, note),
        Row("tokens per step", f"<= {rollouts * length:,}", f"{length:,} per rollout"),
        Row("new tokens per step", new_tokens, f"{reply_tokens:,} per rollout"),
    ]


def _total_rows(config: Config, engine: Engine, workload: Workload) -> Iterator[Row]:
    yield Row("steps", f"{workload.steps(config):,}")
    for stage, (count, note) in generations(config, engine, workload).items():
        if count:
            yield Row(f"{stage} generations", f"{count:,}", note)
    yield Row("generations in all", f"{total_generations(config, engine, workload):,}")


def _gpu_rows(config: Config) -> Iterator[Row]:
    """The layout of NeMo-RL over the GPUs, and the memory that it takes."""
    name, layout = config.policy.model_name, layout_of(config)
    sizes = f"{layout.tensor} tensor x {layout.pipeline} pipeline x {layout.context} context"
    yield Row("GPUs that train", f"{layout.training_gpus:,}", f"a copy on {sizes}")
    yield Row("data-parallel ranks", f"{layout.data_parallel:,}", "share the batch")
    yield Row("vLLM replicas", f"{layout.replicas:,}", f"{layout.vllm_gpus} GPUs each")
    shape = model_shape(name)
    if shape is None:
        yield Row("memory per GPU", "not estimated", f"unknown: {name}")
        return
    rank, trained = lora_rank(config), trained_parameters(config, shape)
    yield Row("parameters", f"{shape.parameters:,}", "from the model's shape")
    yield Row("trained parameters", f"{trained:,}", f"LoRA of rank {rank}" if rank else "all")
    memory = memory_of(config, shape)
    parts = f"weights {in_gb(memory.weights, 1)}, gradients {in_gb(memory.gradients, 1)}"
    note = f"{parts}, optimizer {in_gb(memory.optimizer, 1)}; activations come on top"
    yield Row("memory per GPU, training", f">= {in_gb(memory.training, 1)}", note)
    weights = f"weights {in_gb(memory.vllm_weights, 1)}; caches take the rest"
    limit, utilization = config.equipoise.gpu_memory_gb, config.policy.generation.vllm_cfg
    if limit is None:
        yield Row("memory per GPU, vLLM", "not known", "equipoise.gpu_memory_gb is null")
    else:
        share = f"{utilization.gpu_memory_utilization:g} of {limit:g} GB; {weights}"
        yield Row("memory per GPU, vLLM", in_gb(vllm_share(config), 1), share)
    yield Row("memory of a node's host", f">= {in_gb(memory.host, 1)}", "and Ray's object store")
