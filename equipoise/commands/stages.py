"""The stages of a run, in their order: from a configuration to a finished run directory."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.commands.tracking import Tracker
from equipoise.config import LoadedConfig
from equipoise.files.console import Reporter
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.files.nemo_rl import find_installation
from equipoise.report.card import write_card
from equipoise.report.renderers import print_result, print_stage
from equipoise.report.report import write_report
from equipoise.report.run_files import read_run
from equipoise.run.directory import NewRun, RunDirectory
from equipoise.run.job import (
    BASELINE,
    Display,
    Job,
    Policy,
    Watch,
    after_training,
    begin_training,
    compare_stages,
    evaluate,
    is_drawn,
    score_final,
    take_reference,
)
from equipoise.run.ledger import Meter, Provenance, now, owning
from equipoise.run.probe import probe, write_modes
from equipoise.run.seals import seal
from equipoise.run.start import Setup, prepare_run, record_prompts, reported, start_run

_LOG = logging.getLogger(__name__)
#: Runs a job's stages up to the trained model's replies, without those that its directory holds.
Stages = Callable[[Job, Watch], None]


def run_pipeline(
    loaded: LoadedConfig,
    run: RunDirectory | NewRun,
    reporter: Reporter,
    log_to: Callable[[Path], None],
    *,
    rehearse: bool = False,
    probe_only: bool = False,
) -> RunDirectory:
    """Prompts, model, baseline, probe, training, final evaluation, comparison, report.

    With `probe_only`, on the local engine, it ends before training, which `--resume` begins.

    A run is kept from when its model has been loaded; before that a mistake leaves nothing. Stages
    that the directory already holds are not run again. The caller owns a `RunDirectory`, see
    `owning`.
    """
    display, meter = display_of(reporter), Meter()
    setup = prepare_run(loaded, run, display)
    with display.progress("loading the model"):
        stages = open_engine(loaded, setup, rehearse=rehearse, probe_only=probe_only)
    with ExitStack() as owned:
        if isinstance(run, NewRun):
            run = run.create(partial(start_run, loaded, setup.records))
            reporter.say(f"run directory: {run.root}")
            owned.enter_context(owning(run.root))
        log_to(run.log)
        owned.enter_context(meter.writing(run.ledger, reporter.warn))
        tracker = owned.enter_context(Tracker(loaded, run))
        job = Job(
            loaded=loaded,
            run=run,
            records=record_prompts(run),
            environment=setup.environment,
            model_name=setup.model_name,
            meter=meter,
            display=display,
        )
        try:
            with reported(job, report):
                stages(job, partial(tracker.watching, job))
                if not probe_only:
                    score_final(job)
                    write_modes(job)
            if probe_only:
                report(job)
                reporter.say(f"\nreport: {run.report}")
            else:
                finish(job, reporter)
        except Stopped:
            raise Stopped(f"stopped; --resume {run.root} continues it") from None
    return run


def display_of(reporter: Reporter, *, audited: bool = False) -> Display:
    """Show a run, or a row of an audit, at work on the terminal."""
    show = partial(print_stage, reporter, audited=audited)
    return Display(reporter.heading, reporter.progress, show, audited, reporter.writing_to)


# --- the engines ----------------------------------------------------------------------------------
# Each brings libraries that the other does without, and refuses what cannot run.


def open_engine(loaded: LoadedConfig, setup: Setup, *, rehearse: bool, probe_only: bool) -> Stages:
    """Load the local engine's model, or NeMo-RL's tokenizer; refuse what would fail later."""
    if loaded.engine == "local":
        from equipoise.run.policy import open_policy

        model = open_policy(loaded.config, setup.records, setup.model_name)
        return partial(run_local, model=model, probe_only=probe_only)
    from equipoise.train.nemo_rl import engine

    tokenizer = engine.open_tokenizer(loaded.config, setup.records, setup.model_name)
    return partial(run_nemo_rl, tokenizer=tokenizer, rehearse=rehearse)


def run_local(job: Job, watch: Watch, model: Any, *, probe_only: bool) -> None:
    """Run the stages on the local engine."""
    from equipoise.train.local_policy import open_local

    run_stages(job, partial(open_local, job, model, watch), probe_only=probe_only)


def run_nemo_rl(job: Job, watch: Watch, tokenizer: Any, *, rehearse: bool) -> None:
    """Run the stages on NeMo-RL, or rehearse them, and export the trained model."""
    from equipoise.train.nemo_rl import engine

    engine.record_identity(job, tokenizer)
    if rehearse:
        from equipoise.train.nemo_rl.rehearsal.rehearse import Rehearsal, compare_policies

        rehearsal = Rehearsal(job)
        rehearsal.announce()
        run_stages(job, partial(rehearsal.open_policy, watch))
        export(job)
        compare_policies(job, rehearsal.replies)
    else:
        run_stages(job, partial(engine.open_policy, job, watch))
        export(job)


def run_stages(
    job: Job, open_policy: Callable[[], AbstractContextManager[Policy]], *, probe_only: bool = False
) -> None:
    """Run reference, baseline, probe and training, and draw the replies of the trained model.

    The policy is opened again where an engine ends before the replies are drawn.
    """
    take_reference(job)  # of a resumed run
    while not is_drawn(job):
        with open_policy() as policy:
            if not policy.steps:
                frozen = policy.sampler()
                if not job.run.reference.exists():
                    take_reference(job, frozen)
                evaluate(job, BASELINE, frozen)
                probe(job, frozen)
            if probe_only:
                return
            if policy.steps < job.steps:
                begin_training(job)
                policy.train()
            if policy.steps == job.steps:
                after_training(job, policy.sampler())


def export(job: Job) -> None:
    """Write `final_checkpoint/`, or say what makes it of a model that Equipoise does not know."""
    form, destination = job.config.equipoise.export, job.run.final_checkpoint
    if form == "none" or destination.exists():
        return
    from equipoise.checkpoints.convert import convert
    from equipoise.train.nemo_rl.history import latest_checkpoint

    newest = latest_checkpoint(job.run.checkpoints)
    assert newest is not None, "NeMo-RL saves a checkpoint at the last step"
    adapter, progress = form == "adapter", job.display.progress
    try:
        convert(
            newest.path, destination, base=job.model_name, keep_adapter=adapter, progress=progress
        )
    except EquipoiseError as error:
        converters = find_installation().root / "examples" / "converters"
        _LOG.warning(
            f"{destination} was not made: {error.message}; NeMo-RL's own converters are in "
            f"{converters}: give them {newest.path}"
        )
        return
    seal(job.run, destination)


# --- the end --------------------------------------------------------------------------------------


def report(job: Job) -> None:
    """Write report.html and the model card, with time and memory so far."""
    job.meter.write()
    write_report(job.run.root)
    write_card(job.run.root)


def finish(job: Job, reporter: Reporter) -> None:
    """Print the tables, and write comparison.json and report.html from both stages' files."""
    run = job.run
    compare_stages(job)
    run.ledger.update(Provenance(finished=now()))
    with reporter.progress("writing the report"):
        report(job)
    reporter.heading("Result")
    print_result(reporter, read_run(run.root, replies=False))
    steps = job.config.grpo.max_num_steps
    reporter.say(f"\nfinished: every stage ran, with {steps:,} steps of training")
    reporter.say(f"report: {run.report}")
    if run.final_checkpoint.exists():
        reporter.say(f"model:  {run.final_checkpoint}")
