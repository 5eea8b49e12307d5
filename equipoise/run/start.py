"""How a run starts: its prompts, its model, its first files; and how another process goes on.

Preparation and check of a task are methods of its data module, see data_prep/contract.py. Only the
steps of a run may grow: a longer run takes the schedule of learning rates of its new length, from
the step on that it has reached; NeMo-RL takes the schedule that its checkpoint holds.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from data_prep.contract import Tools
from data_prep.records import (
    DataError,
    UnsuitablePromptsError,
    content_hash,
    manifest_path,
    read_prompts,
    write_prompts,
)
from environments.base import TRAIN_SPLIT, PromptRecord, code_of
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.config import LOCAL_MODEL, LoadedConfig, check_prompts, control_token_problems
from equipoise.config.load import set_size
from equipoise.config.schedule import count_steps, total_steps
from equipoise.files.disk import read_json, read_yaml, write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import Stopped
from equipoise.models.hub import clear_errors, located, offline, refuse_missing_tokenizer
from equipoise.models.task_environment import (
    load_chat_model,
    load_encoder,
    make_environment,
    provide_models,
)
from equipoise.run.directory import NewRun, RunDirectory, open_run_directory
from equipoise.run.job import BUDGET_REMEDY, Display, Job, check_environment, record_sources
from equipoise.run.ledger import Growth, Provenance, code_diff, describe_run
from equipoise.run.seals import check_part, find_checkpoints, remove, seal

_LOG = logging.getLogger(__name__)


# --- prompts --------------------------------------------------------------------------------------

_TASK_REMEDY = "Change equipoise.data or env in the configuration."


def prepare_task(
    loaded: LoadedConfig, say: Callable[[str], None], *, dry_run: bool = False, ask: bool = False
) -> None:
    """Let the task make what its prompts and its environment need. Raises `EquipoiseError`.

    A dry run makes nothing; with `ask` each of its models is asked one question.
    """
    cache = loaded.config.equipoise.cache_dir
    tools = Tools(lambda name: load_chat_model(name, cache), load_encoder, say, dry_run, ask)
    try:
        # A dry run fetches nothing; with `ask` a model may be, to be asked.
        with clear_errors(), offline() if dry_run and not ask else nullcontext():
            loaded.data_module.prepare(loaded.prompt_settings, tools)
    except ValueError as error:
        raise EquipoiseError(
            code_of(error, "prompts.unprepared-task"), str(error), _TASK_REMEDY
        ) from error
    except BudgetSpentError as error:  # what was made so far is kept
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error


def record_prompts(run: RunDirectory) -> list[PromptRecord]:
    """The run's prompts as its file holds them; the provenance has their hash."""
    records = read_records(run.prompts)
    run.ledger.update(Provenance(hashes={"prompts": content_hash(records)}))
    return records


def make_prompts(loaded: LoadedConfig, *, to_train: bool = True) -> Sequence[PromptRecord]:
    """From `equipoise.data.data_path` where it is set, else from the task's data module.

    Raises `EquipoiseError` with every reason why they cannot be trained on. Without `to_train`
    there may be none to train on, and an environment that sees no sets may be given sets of any
    size.
    """
    path = loaded.config.equipoise.data.data_path
    settings = loaded.prompt_settings
    if to_train and not path and settings.no_training:
        raise UsageError("prompts.no-training", settings.no_training, "Nothing was started.")
    records = read_records(Path(path)) if path else _build(loaded)
    size = set_size(loaded.environment_class, loaded.env_settings)
    problems = check_prompts(records, size if to_train or size > 1 else None, to_train=to_train)
    problems += loaded.data_module.prompt_problems(records)
    problems += loaded.env_settings.prompt_problems(records)
    if problems:
        raise EquipoiseError(
            "prompts.unusable",
            "\n".join(["the prompts cannot be used:", *problems]),
            "Correct the file, or let equipoise.data.module make the prompts.",
        )
    return records


def check_steps(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> None:
    """Raise `UsageError` where a step takes more prompts than there are, or a stage has none."""
    split = loaded.config.equipoise.evaluation.split
    splits = Counter(record.split for record in records)
    if split not in splits:  # the baseline would have no reply, which shows when a model is loaded
        counts = ", ".join(f"{count:,} {name}" for name, count in splits.items())
        raise UsageError(
            "prompts.no-evaluation-split",
            f"no prompt is of the split {split}, on which a run is evaluated; there are {counts}",
            "Name one of these splits in equipoise.evaluation.split, or correct the prompts' own.",
        )
    available = splits[TRAIN_SPLIT]
    prompts = loaded.config.grpo.num_prompts_per_step
    if prompts > available:
        size = set_size(loaded.environment_class, loaded.env_settings)
        raise UsageError(
            "prompts.too-few",
            f"grpo.num_prompts_per_step is {prompts}, and there are {available} prompts to train "
            "on",
            f"Lower it with --batch-size {available - available % size}, or make more prompts with "
            "--num-samples where there are more.",
        )


def prompts_here(loaded: LoadedConfig, *, to_train: bool = True) -> Sequence[PromptRecord]:
    """`make_prompts` for a dry run: of what is on this machine, for nothing is fetched."""
    with offline():
        try:
            return make_prompts(loaded, to_train=to_train)
        except UsageError as error:
            remedy = f"{error.remedy} A dry run fetches nothing."
            raise UsageError(error.code, error.message, remedy) from error


def refuse_control_tokens(records: Sequence[PromptRecord], tokens: Collection[str]) -> None:
    """Raise `EquipoiseError` for prompts that hold special tokens of the model's tokenizer."""
    if problems := control_token_problems(records, tokens):
        raise EquipoiseError(
            "prompts.control-tokens",
            "\n".join(["the prompts cannot be used with this model:", *problems]),
            "Correct the file of the prompts and start a new run.",
        )


def read_records(path: Path) -> list[PromptRecord]:
    """Read prompts.jsonl; a corrupt record is the user's error, with its line number."""
    try:
        return read_prompts(path)
    except DataError as error:
        raise EquipoiseError(
            error.code,
            str(error),
            f"A file that was made or changed by hand is checked and sealed by "
            f"`uv run equipoise seal {path}`.",
        ) from error


def _build(loaded: LoadedConfig) -> list[PromptRecord]:
    try:
        return loaded.data_module.build_prompts(loaded.prompt_settings)
    except ValueError as error:
        raise UsageError(
            code_of(error, "prompts.failed-build"),
            str(error),
            "Change equipoise.data in the configuration.",
        ) from error


# --- a new run ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a run needs before it is kept: a mistake up to here leaves nothing."""

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


def model_name(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    display: Display,
) -> str:
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
    maker = loaded.data_module  # which makes one: the configuration refuses any other here
    display.begin("Local model")
    _LOG.info(maker.LOCAL_MODEL_NOTICE)
    cache = Path(config.equipoise.cache_dir).expanduser()
    _LOG.info(f"It is made once, within one to five minutes, and kept in {cache}.")
    try:
        with display.progress("making the local model"):
            folder = maker.build_local_model(records, loaded.local_model_settings, cache)
    except UnsuitablePromptsError as error:
        raise UsageError(error.code, str(error), "Name another model with --model-name.") from error
    _LOG.info(f"model: {folder}")
    return str(folder)


def start_run(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    run: RunDirectory,
    name: str,
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
    planned, target = _planned(run), config.grpo.max_num_steps
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

    prompts = read_json(manifest_path(run.prompts))["prompts"].get(TRAIN_SPLIT, 0)
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
    """Write down that the run is to have more steps, where it is.

    The result of fewer steps goes, for it is made anew. The configuration is written last: a death
    before leaves a run that makes that result again from its newest checkpoint.
    """
    planned, target, done = _planned(run), loaded.config.grpo.max_num_steps, reached_step(run)
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


def _planned(run: RunDirectory) -> int:
    return int(read_yaml(run.config)["grpo"]["max_num_steps"])


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
