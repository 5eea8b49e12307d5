"""The start of training, before its pipeline: validate everything, show it, reach the engine."""

from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

from dotenv import load_dotenv

from data_prep.contract import DataModule
from equipoise.commands.dry_run import dry_run
from equipoise.config import (
    LOCAL_MODEL,
    LoadedConfig,
    Options,
    load_config,
)
from equipoise.config.nemo_rl.installation import hand_over, is_launched
from equipoise.doctor.checks import Case
from equipoise.doctor.nemo_rl import installation, usable_installation
from equipoise.doctor.registry import compare_plan, refuse_unfit
from equipoise.files.console import Reporter
from equipoise.files.errors import UsageError
from equipoise.models.hub import prepare_torch
from equipoise.run.directory import (
    NewRun,
    RunDirectory,
    model_label,
    open_run_directory,
    usable_folder,
)
from equipoise.run.ledger import owning
from equipoise.run.log import kept_log
from equipoise.run.prompts import prepare_task
from equipoise.run.resume import check_resume
from equipoise.train.nemo_rl.rehearsal.shrink import rehearsal_config


def run(task: str, options: Options, reporter: Reporter) -> None:
    """Validate everything, then show what would run, or run it."""
    load_dotenv(Path.cwd() / ".env")
    loaded = load_config(task, options)
    label = model_label(loaded.config.policy.model_name)
    rehearse = options.rehearse or is_rehearsal(options)
    if rehearse and not options.resume:
        loaded, label = rehearsal_config(task, options, loaded), f"{label}-rehearsal"
    if options.resume:
        check_resume(loaded)
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
        if not loaded.data_module.offers(DataModule.prepare):
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
        usable_installation("a CPU")
        return
    case = Case(loaded, purpose="start")
    if loaded.engine == "nemo_rl" and not is_launched():
        hand_over(case.once(installation).root)
    refuse_unfit(case, reporter.warn)


def announce(loaded: LoadedConfig, reporter: Reporter) -> None:
    """Say what is about to run, and what of the configuration will not be read."""
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


def is_rehearsal(options: Options) -> bool:
    """Whether the run to resume is one."""
    if not options.resume:
        return False
    return bool(open_run_directory(options.resume).ledger.read().get("rehearsal"))
