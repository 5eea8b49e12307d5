"""`--resume` with other keys: what may change, what is refused, and how a change is kept.

How long a run trains may change, what it costs and whom it tells; nothing that decides what is
trained or how it is measured. Another length takes the schedule of learning rates of that length,
from the step on that the run has reached.
"""

import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from data_prep.files import read_json, write_text
from data_prep.records import manifest_path
from environments.base import TRAIN_SPLIT
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.compose import differences
from equipoise.config.schedule import total_steps
from equipoise.config.schema import Config
from equipoise.errors import UsageError
from equipoise.run.directory import RunDirectory, open_run_directory
from equipoise.run.ledger import (
    REPLACES,
    command_line,
    git_state,
    now,
)
from equipoise.run.seals import damage_of, find_checkpoints, forget_files, record_files

#: Keys and sections that may change; `*` stands for any part of a key.
MAY_CHANGE = (
    "grpo.max_num_steps",
    "grpo.max_num_epochs",
    "grpo.val_period",
    "grpo.val_batch_size",
    "grpo.max_val_samples",
    "logger",
    "cluster",
    "checkpointing.save_period",
    "checkpointing.keep_top_k",
    "checkpointing.checkpoint_must_save_by",
    "policy.train_micro_batch_size",
    "policy.logprob_batch_size",
    "policy.logprob_chunk_size",
    "policy.generation_batch_size",
    "policy.dtensor_cfg.activation_checkpointing",
    "policy.megatron_cfg.activation_checkpointing",
    "policy.generation.vllm_cfg.gpu_memory_utilization",
    "policy.generation.vllm_cfg.enforce_eager",
    "equipoise.threads",
    "equipoise.gpu_memory_gb",
    "equipoise.cache_dir",
    "equipoise.max_failure_rate",
    "equipoise.failure_window",
    "equipoise.max_token_mult_prob_error",
    "equipoise.stop_without_signal",
    "equipoise.export",
    "equipoise.environment_actor",
    "equipoise.training_rollouts",
    "equipoise.evaluation.batch_size",
    "env.*.url",
    "env.*.api_key_env",
    "env.*.limits",
    "env.*.budget",
    "env.*.cache_dir",
)
#: What may change with the length where the checkpoint does not hold it.
_SCHEDULE = "policy.scheduler"
_LENGTH = frozenset({"grpo.max_num_steps", "grpo.max_num_epochs"})
#: The names that the two engines give to checkpoints.
_CHECKPOINTS = ("checkpoint-", "step_")


@dataclass(frozen=True, slots=True)
class Change:
    """A key that has another value now; None is a key that is not set."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """The difference, as an error shows it."""
        return f"{self.key}: the run has {self.before}, asked for is {self.after}"


@dataclass(frozen=True, slots=True)
class Resumption:
    """The changes by `--resume`, and the run's length: reached, planned and asked for."""

    run: RunDirectory
    loaded: LoadedConfig
    changes: tuple[Change, ...]
    done: int
    planned: int
    target: int


def check_resume(task: str, options: Options, loaded: LoadedConfig) -> Resumption:
    """Compare what is asked for with what the run has. Raises `UsageError` for what is refused."""
    assert options.resume is not None, "there is a run to resume"
    run = open_run_directory(options.resume)
    if problems := damage_of(run, run.config.name):
        raise UsageError(
            "resume.changed-folder",
            f"{run.root}: {', '.join(problems)}",
            "Put it back as it was, and give what is to change to --resume, as key=value.",
        )
    original = load_config(task, replace(options, settings=(), assignments=()))
    changed = differences(_values(original), _values(loaded))
    changes = tuple(Change(key, before, after) for key, (before, after) in changed.items())
    keys = {change.key for change in changes}
    if refused := [c for c in changes if not _may_change(c.key, keys, loaded.engine)]:
        raise UsageError(
            "resume.fixed-keys",
            "\n".join(["--resume goes on with a run as it began:", *(f"  {c}" for c in refused)]),
            "Leave these keys out, or start a new run with another --run-name. What may change "
            "is in docs/run-directory.md.",
        )
    planned, target = (_steps(run, config) for config in (original.config, loaded.config))
    checkpoints = [c for prefix in _CHECKPOINTS for c in find_checkpoints(run.checkpoints, prefix)]
    done = max((checkpoint.step for checkpoint in checkpoints), default=0)
    resumption = Resumption(run, loaded, changes, done, planned, target)
    _refuse_length(resumption)
    return resumption


def record_changes(resumption: Resumption, say: Callable[[str], None]) -> None:
    """Say what changes and write it down. The result of another length stays until there is a new.

    The configuration is written last: a death before it leaves a run of the old length. Raises
    `UsageError` when the added steps would train nothing.
    """
    if resumption.target > resumption.planned:
        say(_describe_rates(resumption))
    for change in resumption.changes:
        say(f"changed: {change}")
    run, folder = resumption.run, _copy_to_earlier(resumption) if resumption.changes else None
    entry = {
        "time": now(),
        "command": command_line(),
        "git": git_state(),
        "from_step": resumption.done,
        "changes": {c.key: {"before": c.before, "after": c.after} for c in resumption.changes},
        "kept_in": folder,
    }
    before = run.ledger.read().get("resumed", [])
    run.ledger.update({"resumed": [*before, entry]})
    if resumption.changes:
        forget_files(run, [run.config.name])
        write_text(run.config, resumption.loaded.to_yaml())
        record_files(run, run.config)


def _copy_to_earlier(resumption: Resumption) -> str:
    """Copy what is replaced into `earlier/<n>`, and say which folder that is."""
    run = resumption.run
    number = 1 + sum(1 for _ in run.earlier.glob("*"))
    folder = run.earlier / str(number)
    folder.mkdir(parents=True)
    shutil.copyfile(run.config, folder / run.config.name)
    name = f"{run.earlier.name}/{number}"
    if resumption.target == resumption.planned:
        return name
    # Of another length what training goes on with; the result moves when a new one is there.
    for file in filter(Path.exists, (run.history, run.report)):
        shutil.copyfile(file, folder / file.name)
    if run.training.exists():
        shutil.copytree(run.training.parent, folder / run.training.parent.name)
    forget_files(run, [run.history.name, run.training.parent.name])
    if has_result(run):
        run.ledger.update({REPLACES: name})
    return name


def has_result(run: RunDirectory) -> bool:
    """Whether the model is trained to the run's own length; the result of another is none."""
    trained = run.final_checkpoint.exists() or run.evaluation("final").exists()
    return trained and not run.ledger.read().get(REPLACES)


def set_result_aside(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Move the result of another length into `earlier/<n>`, now that a new one takes its place."""
    folder = run.ledger.read().get(REPLACES)
    if not folder:
        return
    final = run.evaluation("final").parent
    parts = [run.comparison, run.modes, run.added, final, run.final_checkpoint]
    forget_files(run, [part.name for part in parts])
    for part in filter(Path.exists, parts):
        target = run.root / folder / part.relative_to(run.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.rename(target)
    run.ledger.update({REPLACES: None, "finished": None})
    say(f"the result before these steps is kept in {run.root / folder}")


def where_result_is(run: RunDirectory) -> str:
    """Say where the result of an earlier length is, for a message; empty where there is none."""
    if run.provenance.is_file() and run.ledger.read(unsealed=True).get(REPLACES):
        return f"the result before these steps is still in {run.root}, as it was"
    moved = [path for path in run.earlier.glob("*") if (path / run.final_checkpoint.name).exists()]
    newest = max(moved, key=lambda path: path.stat().st_mtime, default=None)
    return f"an earlier result is kept in {newest}" if newest else ""


def _may_change(key: str, changed: AbstractSet[str], engine: str) -> bool:
    if key == _SCHEDULE:
        return engine == "local" and bool(changed & _LENGTH)
    return may_change(key)


def may_change(key: str) -> bool:
    """Whether a key decides nothing of what is trained, or how it is scored and measured."""
    return any(fnmatchcase(key, name) or fnmatchcase(key, f"{name}.*") for name in MAY_CHANGE)


def _values(loaded: LoadedConfig) -> dict[str, Any]:
    """Every key with its default; of the sections that are the task's own, as they are written."""
    sections = {name: loaded.resolved[name] for name in ("env", "equipoise")}
    # What Equipoise does not read is None there, whatever type it would have.
    return loaded.config.model_dump(mode="json", by_alias=True, warnings=False) | sections


def _steps(run: RunDirectory, config: Config) -> int:
    """How many steps a configuration trains on the run's prompts."""
    try:
        prompts = read_json(manifest_path(run.prompts))["prompts"].get(TRAIN_SPLIT, 0)
    except (OSError, ValueError, KeyError):  # none yet, or refused when they are read
        return config.grpo.max_num_steps
    return total_steps(prompts, config)


def _refuse_length(resumption: Resumption) -> None:
    """Raise `UsageError` for fewer steps than were trained, and for more with nothing to go on."""
    if resumption.target == resumption.planned:
        return
    if resumption.target < resumption.done:
        raise UsageError(
            "resume.no-more-steps",
            f"the run has trained {resumption.done} steps, and {resumption.target} are asked for",
            "Ask for more with --iterations, or start a new run with another --run-name.",
        )
    if resumption.run.final_checkpoint.exists() and not resumption.done:
        raise UsageError(
            "resume.no-checkpoint",
            f"the run has ended, and {resumption.run.checkpoints} holds nothing to go on from",
            "Put the checkpoints back, or start a new run with another --run-name.",
        )


def _describe_rates(resumption: Resumption) -> str:
    """The learning rates of the steps to come, of which one at least must train."""
    # torch takes seconds to import, and few resumptions need it.
    from equipoise.config.learning_rate import learning_rates

    rates = learning_rates(resumption.loaded.config.policy, resumption.target)
    first = max(resumption.done, resumption.planned)
    if not any(rates[first:]):
        raise UsageError(
            "resume.ended-schedule",
            f"{_SCHEDULE} gives the added steps {first + 1} to {resumption.target} learning rate 0",
            f"On the local engine state another {_SCHEDULE} with the new length; NeMo-RL takes it "
            "from its checkpoint, so start a new run there.",
        )
    return (
        f"training goes on from step {resumption.done} to {resumption.target}, by {_SCHEDULE} at "
        f"that length: learning rate {rates[resumption.done]:.3g} at first, {rates[-1]:.3g} at last"
    )
