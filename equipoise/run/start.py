"""How a run starts: its model and its first files; and how another process goes on.

Only the steps of a run may grow: a longer run takes the schedule of learning rates of its new
length, from the step on that it has reached; NeMo-RL takes the schedule that its checkpoint holds.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_prep.contract import Example
from environments.base import TRAIN_SPLIT, PromptRecord
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.config import LOCAL_MODEL, LoadedConfig
from equipoise.config.schedule import count_steps, total_steps
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import Stopped
from equipoise.files.hub import located, refuse_missing_tokenizer
from equipoise.files.records import UnsuitablePromptsError, content_hash, write_prompts
from equipoise.run.directory import NewRun, RunDirectory, StoredConfig, open_run_directory
from equipoise.run.job import Display, Job, check_environment, record_sources
from equipoise.run.ledger import Growth, Provenance, code_diff, describe_run
from equipoise.run.seals import check_part, find_checkpoints, remove, seal
from equipoise.run.task import (
    BUDGET_REMEDY,
    check_steps,
    make_environment,
    make_prompts,
    prepare_task,
    provide_models,
    read_records,
)

_LOG = logging.getLogger(__name__)


# --- a new run ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a run needs before its folder is made; a mistake up to here leaves nothing."""

    records: Sequence[PromptRecord]
    environment: Environment
    model_name: str


def prepare_run(loaded: LoadedConfig, run: RunDirectory | NewRun, display: Display) -> Setup:
    """Make the prompts of a new run, or read a run's; load what gives reward, find the model."""
    with display.progress("preparing what the prompts need"):
        prepare_task(loaded, _LOG.info)
    records = make_prompts(loaded) if isinstance(run, NewRun) else read_records(run.prompts)
    check_steps(loaded, records)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    name = model_name(loaded, records, display)
    with display.progress("loading what gives reward"):
        provide_models(environment, loaded.config.equipoise.cache_dir)
    if isinstance(run, NewRun) or not run.comparison.exists():
        check_environment(environment, display.progress)
    return Setup(records, environment, name)


def model_name(loaded: LoadedConfig, records: Sequence[PromptRecord], display: Display) -> str:
    """The name or folder of the model to train; `local` builds the task's tiny model.

    A packaged model is its folder, which is made once.
    """
    config = loaded.config
    if config.policy.tokenizer.name != config.policy.model_name:
        refuse_missing_tokenizer(config.policy.tokenizer.name)  # before a model is made
    if config.policy.model_name != LOCAL_MODEL:
        with display.progress("finding the model"):
            check_part(Path(config.policy.model_name))
            return located(config.policy.model_name, config.equipoise.cache_dir)
    display.begin("Local model")
    _LOG.info(loaded.data_module.LOCAL_MODEL_NOTICE)
    cache = Path(config.equipoise.cache_dir).expanduser()
    _LOG.info(f"It is made once, within one to five minutes, and kept in {cache}.")
    try:
        with display.progress("making the local model"):
            folder = build_local_model(loaded, records, cache)
    except UnsuitablePromptsError as error:
        raise UsageError(error.code, str(error), "Name another model with --model-name.") from error
    _LOG.info(f"model: {folder}")
    return str(folder)


def build_local_model(loaded: LoadedConfig, records: Sequence[PromptRecord], cache: Path) -> Path:
    """Make the task's small model, which imitates replies, in `cache`; return its folder.

    Raises `UnsuitablePromptsError` for prompts to which the task knows no reply.
    """
    from data_prep.tiny_model import warm_start  # imports torch

    settings = loaded.local_model_settings
    assert settings is not None, "the configuration refuses a task without a local model"
    replies = loaded.data_module.imitated_replies(records, settings)
    return warm_start([Example(r.messages, reply) for r, reply in replies], settings, cache)


def record_prompts(run: RunDirectory) -> list[PromptRecord]:
    """The run's prompts as its file holds them; the provenance has their hash."""
    records = read_records(run.prompts)
    run.ledger.update(Provenance(hashes={"prompts": content_hash(records)}))
    return records


def start_run(
    loaded: LoadedConfig, records: Sequence[PromptRecord], run: RunDirectory, name: str
) -> None:
    """Write what a new run is made from: provenance.json, code.diff, config.yaml, its prompts."""
    run.ledger.create(describe_run(loaded, name))
    if diff := code_diff():
        run.code_diff.write_bytes(diff)
    write_text(run.config, loaded.to_yaml())
    write_prompts(run.prompts, records, loaded.config.equipoise.data.model_dump())
    seal(run)


# --- going on -------------------------------------------------------------------------------------


#: The only key that `--resume` may set.
LENGTH = "grpo.max_num_steps"
#: The names that the two engines give to checkpoints.
_CHECKPOINTS = ("checkpoint-", "step_")


def check_resume(loaded: LoadedConfig) -> None:
    """Raise `UsageError` where `--resume` is given more than a larger number of steps."""
    options = loaded.options
    assert options.resume is not None, "there is a run to resume"
    run = open_run_directory(options.resume)
    keys = [setting.key for setting in options.settings]
    keys += [word.partition("=")[0] for word in options.assignments]
    if refused := [key for key in dict.fromkeys(keys) if key != LENGTH]:
        raise UsageError(
            "resume.fixed-keys",
            f"--resume goes on with {run.config} and takes no {', '.join(refused)}",
            f"Leave these out ({LENGTH} alone may grow), or start a new run.",
        )
    if keys:
        _check_length(run, loaded)


def _check_length(run: RunDirectory, loaded: LoadedConfig) -> None:
    config, done = loaded.config, reached_step(run)
    planned, target = StoredConfig.of(run).steps, config.grpo.max_num_steps
    if target < planned:
        raise UsageError(
            "resume.fewer-steps",
            f"the run has {planned} steps, and {target} are asked for",
            "Ask for more, or start a new run with another --run-name.",
        )
    if target == planned:
        return
    if run.final_checkpoint.exists() and not done:
        raise UsageError(
            "resume.no-checkpoint",
            f"the run has ended, and {run.checkpoints} holds nothing to go on from",
            "Put the checkpoints back, or start a new run with another --run-name.",
        )
    # torch takes seconds to import, and few resumptions need it.
    from equipoise.config.schedule import learning_rates

    prompts = sum(record.split == TRAIN_SPLIT for record in read_records(run.prompts))
    grpo, steps = config.grpo, total_steps(prompts, config)
    before = count_steps(prompts, grpo.num_prompts_per_step, planned, grpo.max_num_epochs)
    if not any(learning_rates(config.policy, steps)[max(done, before) :]):
        raise UsageError(
            "resume.ended-schedule",
            f"the added steps {before + 1} to {target} would train nothing: policy.scheduler gives "
            "them learning rate 0, or grpo.max_num_epochs ends before",
            "Start a new run with another schedule.",
        )


def grow(run: RunDirectory, loaded: LoadedConfig, say: Callable[[str], None]) -> None:
    """Record that the run gets more steps, and from which step on.

    Remove the result of fewer steps; it is made anew. The configuration is written last: a run that
    is killed before makes that result again from its newest checkpoint.
    """
    planned, done = StoredConfig.of(run).steps, reached_step(run)
    target = loaded.config.grpo.max_num_steps
    if target == planned:
        return
    say(f"training goes on from step {done} to {target}; the result of {planned} steps is removed")
    result = (run.comparison, run.modes, run.evaluation("final").parent, run.final_checkpoint)
    for part in filter(Path.exists, result):
        remove(part)
    growth = Growth(from_step=done, steps=target, steps_before=planned)
    grown = (*run.ledger.read().grown, growth)
    run.ledger.update(Provenance(finished=None, grown=grown))
    write_text(run.config, loaded.to_yaml())


def reached_step(run: RunDirectory) -> int:
    """The step of the newest checkpoint, 0 where there is none."""
    checkpoints = [c for prefix in _CHECKPOINTS for c in find_checkpoints(run.checkpoints, prefix)]
    return max((checkpoint.step for checkpoint in checkpoints), default=0)


@contextmanager
def reported(job: Job, report: Callable[[Job], None]) -> Iterator[None]:
    """Run the block; an error in it leaves a report of what there is."""
    grow(job.run, job.loaded, _LOG.info)
    seal(job.run, job.run.config)  # lists what a kill may have left unlisted
    record_sources(job)
    try:
        yield
    except (EquipoiseError, Stopped):
        report(job)
        raise
    except BudgetSpentError as error:  # while evaluating; training stops with a checkpoint
        report(job)
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error
