"""How a run starts, and how it goes on: with its configuration, in which only its steps may grow.

A longer run takes the schedule of learning rates of its new length, from the step on that it has
reached; NeMo-RL takes the schedule that its checkpoint holds.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.records import manifest_path, write_prompts
from data_prep.text_files import UnsuitablePromptsError
from environments.base import TRAIN_SPLIT, PromptRecord
from environments.chat import BudgetSpentError
from equipoise.config import LOCAL_MODEL, LoadedConfig
from equipoise.config.schedule import count_steps, total_steps
from equipoise.files.console import Reporter
from equipoise.files.disk import read_json, write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import Stopped
from equipoise.files.yaml_text import read_yaml
from equipoise.models.hub import located, refuse_missing_tokenizer
from equipoise.run.directory import RunDirectory, open_run_directory
from equipoise.run.evaluation import BASELINE, FINAL
from equipoise.run.job import Job, record_sources
from equipoise.run.ledger import Growth, code_diff, command_line, describe_run, git_state, now
from equipoise.run.prompts import BUDGET_REMEDY
from equipoise.run.seals import (
    check_files,
    check_part,
    damage_of,
    find_checkpoints,
    forget_files,
    record_files,
)

# --- a new run ------------------------------------------------------------------------------------


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
    record_files(run, run.config, run.prompts, manifest_path(run.prompts))


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
    if problems := damage_of(run, run.config.name):
        raise UsageError(
            "resume.changed-folder",
            f"{run.root}: {', '.join(problems)}",
            "Put it back as it was, or start a new run.",
        )
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
    from equipoise.config.learning_rate import learning_rates

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
        record_files(run, run.config)  # a kill may have come between the two
        return
    say(f"training goes on from step {done} to {target}; the result of {planned} steps is removed")
    final = run.evaluation("final").parent
    parts = [run.comparison, run.modes, final, run.final_checkpoint]
    unfinished = [run.config, run.history, run.training.parent]
    growth = Growth(
        time=now(),
        command=command_line(),
        git=git_state(),
        from_step=done,
        steps=target,
        steps_before=planned,
    )
    grown = (*run.ledger.read().grown, growth)
    forget_files(run, [part.name for part in (*parts, *unfinished)])
    for part in filter(lambda path: path.exists(), parts):
        # Of half a folder nothing may read; what a death leaves is removed by the next process.
        scratch = part.rename(part.with_name(f".{part.name}.removed.partial"))
        shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()
    run.ledger.update(finished=None, grown=grown)
    write_text(run.config, loaded.to_yaml())
    record_files(run, run.config)


def reached_step(run: RunDirectory) -> int:
    """The step of the newest checkpoint, 0 where there is none."""
    found = [c for prefix in _CHECKPOINTS for c in find_checkpoints(run.checkpoints, prefix)]
    return max((checkpoint.step for checkpoint in found), default=0)


def _planned(run: RunDirectory) -> int:
    return int(read_yaml(run.config)["grpo"]["max_num_steps"])


@contextmanager
def reported(job: Job, report: Callable[[Job], None]) -> Iterator[None]:
    """Look for damage, then run the block; an error in it leaves a report of what there is."""
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
