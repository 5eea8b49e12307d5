"""From a configuration to a finished run directory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from environments.base import PromptRecord
from equipoise.config import Config, LoadedConfig
from equipoise.files.console import Reporter
from equipoise.files.disk import write_json
from equipoise.files.exits import Stopped
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.report.renderers import print_comparison
from equipoise.run.directory import BASELINE, FINAL, NewRun, RunDirectory
from equipoise.run.job import (
    Job,
    Observer,
    check_environment,
    model_name,
    report,
    reported,
    start_run,
)
from equipoise.run.ledger import (
    now,
    owning,
)
from equipoise.run.prompts import (
    check_steps,
    find_prompts,
    prepare_task,
    record_prompts,
)
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.run.seals import record_files
from equipoise.run.usage import Meter
from equipoise.statistics.compare import Halves, compare, comparison_dict
from equipoise.train.stages.modes import write_modes

#: Configuration, prompts and model of a run -> what takes its job through its stages.
Prepare = Callable[[Config, Sequence[PromptRecord], str], Callable[[Job], None]]
#: What listens to a run while the context lasts.
Observe = Callable[[LoadedConfig, RunDirectory, Reporter], AbstractContextManager[Observer]]


def run_pipeline(
    loaded: LoadedConfig,
    run: RunDirectory | NewRun,
    reporter: Reporter,
    log_to: Callable[[Path], None],
    observe: Observe,
    *,
    rehearse: bool = False,
    probe_only: bool = False,
) -> RunDirectory:
    """Prompts, model, baseline, probe, training, final evaluation, comparison, report.

    With `probe_only`, on the local engine, it ends before training, which `--resume` begins.

    A run is kept from when its model has been loaded; before that a mistake leaves nothing. Every
    stage that the directory holds already is taken from there. A `RunDirectory` is the caller's,
    see `owning`.
    """
    meter = Meter()
    with reporter.progress("preparing what the prompts need"):
        prepare_task(loaded, reporter.say)
    records = find_prompts(loaded, run)
    check_steps(loaded, records)
    config = loaded.config
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    name = model_name(loaded, records, reporter)
    with reporter.progress("loading what gives reward"):
        provide_models(environment, config.equipoise.cache_dir)
    if isinstance(run, NewRun) or not run.comparison.exists():
        check_environment(environment, reporter)
    with reporter.progress("loading the model"):
        prepare = _prepare(loaded.engine, rehearse=rehearse, probe_only=probe_only)
        stages = prepare(config, records, name)
    with ExitStack() as owned:
        if isinstance(run, NewRun):
            run = run.create(partial(start_run, loaded, records))
            reporter.say(f"run directory: {run.root}")
            owned.enter_context(owning(run.root))
        log_to(run.log)
        owned.enter_context(meter.writing(run.ledger, reporter.warn))
        observer = owned.enter_context(observe(loaded, run, reporter))
        job = Job(
            loaded=loaded,
            run=run,
            records=record_prompts(run),
            environment=environment,
            reporter=reporter,
            model_name=name,
            meter=meter,
            observer=observer,
        )
        try:
            (run_probe if probe_only else run_job)(job, stages)
        except Stopped:
            raise Stopped(f"stopped; --resume {run.root} continues it") from None
    return run


def run_job(job: Job, train: Callable[[Job], None]) -> None:
    """Train and finish once the model is loaded; an unfinished run has a report too."""
    with reported(job):
        train(job)
        write_modes(job)
    finish(job)


def run_probe(job: Job, stages: Callable[[Job], None]) -> None:
    """The stages before training, and a report of them."""
    with reported(job):
        stages(job)
    report(job)
    job.reporter.say(f"\nreport: {job.run.report}")


def _prepare(engine: str, *, rehearse: bool, probe_only: bool) -> Prepare:
    """The engine's way in; imported here, for each engine brings libraries the other does without.

    It refuses what cannot run, loads what it can, and returns what does every stage of a job that
    its directory does not hold yet; with `probe_only` those before training alone.
    """
    if probe_only:
        from equipoise.train.local.engine import prepare_probe as prepare
    elif rehearse:
        from equipoise.train.nemo_rl.rehearsal.rehearse import prepare
    elif engine == "nemo_rl":
        from equipoise.train.nemo_rl.engine import prepare
    else:
        from equipoise.train.local.engine import prepare
    return prepare


def compare_stages(job: Job) -> dict[str, Any]:
    """The content of comparison.json, from the files of both stages."""
    run, settings = job.run, job.config.equipoise.evaluation.statistics
    baseline, final = (read_scored_rollouts(run.rollouts(stage)) for stage in (BASELINE, FINAL))
    with job.reporter.progress("comparing"):
        measure = job.environment.measure
        after = measure(*final)
        del final  # the halves of the baseline take as much
        before, halves = measure(*baseline), Halves.of(measure, *baseline)
        return comparison_dict(compare(before, after, settings, frozen=True, halves=halves))


def finish(job: Job) -> None:
    """Tables, comparison.json and report.html from the files of both stages."""
    run, environment = job.run, job.environment
    comparison = compare_stages(job)
    write_json(run.comparison, comparison)
    record_files(run, run.comparison)
    run.ledger.update({"finished": now()})
    with job.reporter.progress("writing the report"):
        report(job)
    job.reporter.heading("Result")
    print_comparison(job.reporter, comparison, environment.presentation.words)
    steps = job.config.grpo.max_num_steps
    job.reporter.say(f"\nfinished: every stage ran, with {steps:,} steps of training")
    job.reporter.say(f"report: {run.report}")
    if run.final_checkpoint.exists():
        job.reporter.say(f"model:  {run.final_checkpoint}")
