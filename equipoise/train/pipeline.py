"""From a configuration to a finished run directory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.records import manifest_path, write_prompts
from data_prep.text_files import UnsuitablePromptsError
from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from equipoise.config import LOCAL_MODEL, Config, LoadedConfig
from equipoise.files.console import Reporter
from equipoise.files.disk import write_json, write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import Stopped
from equipoise.models.hub import located, refuse_missing_tokenizer
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.report.card import write_card
from equipoise.report.renderers import print_comparison
from equipoise.report.report import write_report
from equipoise.run.directory import NewRun, RunDirectory
from equipoise.run.ledger import (
    code_diff,
    code_hash,
    describe_run,
    now,
    owning,
)
from equipoise.run.prompts import (
    BUDGET_REMEDY,
    check_steps,
    find_prompts,
    prepare_task,
    record_prompts,
)
from equipoise.run.resume import grow
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.run.seals import check_files, check_part, record_files
from equipoise.run.usage import Meter
from equipoise.statistics.compare import Halves, compare, comparison_dict
from equipoise.train.stages.around_training import BASELINE, FINAL
from equipoise.train.stages.job import Job, check_environment, record_sources
from equipoise.train.stages.modes import write_modes
from equipoise.train.stages.tracking import Tracker

#: Configuration, prompts and model of a run -> what takes its job through its stages.
Prepare = Callable[[Config, Sequence[PromptRecord], str], Callable[[Job], None]]


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
        tracker = owned.enter_context(Tracker(loaded, run))
        job = Job(
            loaded=loaded,
            run=run,
            records=record_prompts(run),
            environment=environment,
            reporter=reporter,
            model_name=name,
            meter=meter,
            tracker=tracker,
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


@contextmanager
def reported(job: Job) -> Iterator[None]:
    """Inside, what goes wrong leaves a report of what there is; damage is looked for before."""
    run = job.run
    # What cannot be made again: the run's inputs, and what NeMo-RL makes as it trains.
    lasting = [run.config, run.prompts, manifest_path(run.prompts)]
    if job.loaded.engine == "nemo_rl":
        lasting += [run.reference, run.history, run.training.parent, run.probe]
        lasting += [run.evaluation(stage).parent for stage in (BASELINE, FINAL)]
    check_files(run, lasting=frozenset(path.name for path in lasting), warn=job.reporter.warn)
    grow(run, job.loaded, job.reporter.say)
    record_sources(job)
    try:
        yield
    except (EquipoiseError, Stopped):
        report(job)
        raise
    except BudgetSpentError as error:  # while evaluating; training stops with a checkpoint
        report(job)
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error


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


def start_run(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    run: RunDirectory,
    name: str,
) -> None:
    """Write what a new run is made from: provenance.json, code.diff, config.yaml, its prompts."""
    config = loaded.config
    provenance = describe_run(
        task=config.equipoise.task,
        run_name=name,
        engine=loaded.engine,
        model=config.policy.model_name,
        local_model=config.policy.model_name == LOCAL_MODEL,
        seed=config.grpo.seed,
    )
    provenance["hashes"]["environment"] = code_hash(loaded)
    if provenance["local_model"]:  # the report shows what the task says of it
        provenance["local_model_notice"] = loaded.data_module.LOCAL_MODEL_NOTICE
    elif stand_in := loaded.env_settings.stand_in:
        provenance["stand_in"] = stand_in
    run.ledger.create(provenance)
    if diff := code_diff():
        run.code_diff.write_bytes(diff)
    write_text(run.config, loaded.to_yaml())
    write_prompts(run.prompts, records, config.equipoise.data.model_dump())
    record_files(run, run.config, run.prompts, manifest_path(run.prompts))


def model_name(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    reporter: Reporter,
) -> str:
    """The name or folder of the model to train; `local` builds the task's tiny model.

    A packaged model is its folder, which is made once.
    """
    config = loaded.config
    if config.policy.tokenizer.name != config.policy.model_name:
        refuse_missing_tokenizer(config.policy.tokenizer.name)  # before a model is made
    if config.policy.model_name != LOCAL_MODEL:
        with reporter.progress("finding the model"):
            check_part(Path(config.policy.model_name))
            return located(config.policy.model_name, config.equipoise.cache_dir)
    maker = loaded.data_module  # which makes one: the configuration refuses any other here
    reporter.heading("Local model")
    reporter.say(maker.LOCAL_MODEL_NOTICE)
    cache = Path(config.equipoise.cache_dir).expanduser()
    reporter.say(f"It is made once, within one to five minutes, and kept in {cache}.")
    try:
        with reporter.progress("making the local model"):
            folder = maker.build_local_model(records, loaded.local_model_settings, cache)
    except UnsuitablePromptsError as error:
        raise UsageError(error.code, str(error), "Name another model with --model-name.") from error
    reporter.say(f"model: {folder}")
    return str(folder)


def report(job: Job) -> None:
    """report.html and the model card of what there is, with what it took so far."""
    job.meter.write()
    write_report(job.run.root)
    write_card(job.run.root)


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
