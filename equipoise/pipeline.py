"""From a configuration to a finished run directory."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.files import write_json, write_text
from data_prep.records import UnsuitablePromptsError
from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from equipoise.config import LOCAL_MODEL, LoadedConfig
from equipoise.console import Reporter
from equipoise.engines.failures import BUDGET_REMEDY
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluation.compare import compare, comparison_dict
from equipoise.interrupts import Stopped
from equipoise.job import Job, check_environment, keep_sources
from equipoise.modes import keep_modes
from equipoise.preparation import prepare_task
from equipoise.prompts import keep_prompts
from equipoise.provenance import describe_run, now, update_provenance, write_code_diff
from equipoise.report import write_report
from equipoise.rollout_files import read_scored_rollouts
from equipoise.run_directory import RunDirectory
from equipoise.summary import print_comparison
from equipoise.task_environment import hand_in_models, make_environment


def run_pipeline(
    loaded: LoadedConfig, run: RunDirectory, reporter: Reporter, *, rehearse: bool = False
) -> None:
    """Prompts, model, baseline, training, final evaluation, comparison, report.

    Every stage that the directory holds already is taken from there.
    """
    start_run(loaded, run)
    with reporter.progress("preparing what the prompts need"):
        prepare_task(loaded, reporter.say)
    records = keep_prompts(loaded, run)
    job = Job(
        loaded=loaded,
        run=run,
        records=records,
        environment=make_environment(loaded.environment_class, loaded.env_settings),
        reporter=reporter,
        model_name=model_name(loaded, records, reporter),
    )
    with reporter.progress("loading what gives reward"):
        hand_in_models(job.environment, job.config.equipoise.cache_dir)
    keep_sources(job)
    check_environment(job)
    try:
        _engine(loaded.engine, rehearse)(job)
        keep_modes(job)
    except (EquipoiseError, Stopped):
        write_report(run.root)
        raise
    except BudgetSpentError as error:  # while evaluating; training stops with a checkpoint
        write_report(run.root)
        raise EquipoiseError(str(error), BUDGET_REMEDY) from error
    finish(job)


def _engine(name: str, rehearse: bool) -> Callable[[Job], None]:
    """Imported here, for each engine brings libraries that the other does without."""
    module = "nemo_rl.rehearsal.rehearse" if rehearse else f"{name}.engine"
    run: Callable[[Job], None] = importlib.import_module(f"equipoise.engines.{module}").run
    return run


def start_run(loaded: LoadedConfig, run: RunDirectory) -> None:
    """Write provenance.json and config.yaml of a run that is new."""
    if run.config.exists():
        return
    config = loaded.config
    write_json(
        run.provenance,
        describe_run(
            task=config.equipoise.task,
            run_name=run.root.name,
            engine=loaded.engine,
            model=config.policy.model_name,
            local_model=config.policy.model_name == LOCAL_MODEL,
            seed=config.grpo.seed,
        )
        | _about_local_model(loaded),
    )
    write_code_diff(run.root / "code.diff")
    write_text(run.config, loaded.to_yaml())


def _about_local_model(loaded: LoadedConfig) -> dict[str, str]:
    """What the task says of its own small model, for the report, when it is the one that trains."""
    if loaded.config.policy.model_name != LOCAL_MODEL:
        return {}
    return {"local_model_notice": loaded.data_module.LOCAL_MODEL_NOTICE}


def model_name(loaded: LoadedConfig, records: Sequence[PromptRecord], reporter: Reporter) -> str:
    """The name or folder of the model to train; `local` builds the task's tiny model."""
    config = loaded.config
    if config.policy.model_name != LOCAL_MODEL:
        return config.policy.model_name
    reporter.heading("Local model")
    reporter.say(loaded.data_module.LOCAL_MODEL_NOTICE)
    cache = Path(config.equipoise.cache_dir).expanduser()
    reporter.say(f"It is made once, within about a minute, and kept in {cache}.")
    try:
        with reporter.progress("making the local model"):
            folder = loaded.data_module.build_local_model(
                records, loaded.local_model_settings, cache
            )
    except UnsuitablePromptsError as error:
        raise UsageError(str(error), "Name another model with --model-name.") from error
    reporter.say(f"model: {folder}")
    return str(folder)


def finish(job: Job) -> None:
    """Tables, comparison.json and report.html from the files of both stages."""
    run, environment = job.run, job.environment
    before, after = (
        environment.measure(*read_scored_rollouts(run.rollouts(stage)))
        for stage in ("baseline", "final")
    )
    settings = job.config.equipoise.evaluation.statistics
    with job.reporter.progress("comparing"):
        comparison = comparison_dict(compare(before, after, settings))
    write_json(run.comparison, comparison)
    update_provenance(run.provenance, {"finished": now()})
    with job.reporter.progress("writing the report"):
        write_report(run.root)
    job.reporter.heading("Result")
    print_comparison(job.reporter, comparison)
    job.reporter.say(f"\nreport: {run.report}")
    if run.final_checkpoint.exists():
        job.reporter.say(f"model:  {run.final_checkpoint}")
