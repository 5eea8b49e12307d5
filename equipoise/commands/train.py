"""`equipoise train` and `equipoise probe`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from equipoise.config.flags import Options, check_task, tasks
from equipoise.config.training_words import Task, Training, TrainingWords
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import option

if TYPE_CHECKING:  # they bring what takes most of a second to import
    from equipoise.config import LoadedConfig
    from equipoise.run.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class TrainWords(TrainingWords):  # noqa: D101  those of every verb that loads a configuration
    __doc__ = TrainingWords.__doc__
    fail_on_regression: Annotated[
        bool,
        option(
            "gate the trained model after the run, also without equipoise.evaluation.also; exit "
            "code 0: passed, 3: failed, 4: not enough data"
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class TrainOptions:  # noqa: D101  words and text of a training recipe
    __doc__ = TrainingWords.__doc__
    task: Task = None
    training: Annotated[TrainWords, arg(name="")] = field(default_factory=TrainWords)


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Show what the reward of a task pays for nothing.

    The words are those of training; `equipoise train --help` says which of them wins.

    Examples:
        equipoise probe TASK    # with the small local model
        equipoise probe TASK --config nemo_configs/small.yaml    # a 0.5B model on one GPU
    """

    task: Task = None
    training: Training = field(default_factory=TrainingWords)


def run(options: TrainOptions, reporter: Reporter) -> None:
    """Train, and gate where that is asked for. Raises `EquipoiseError`, also for a verdict."""
    directory = _run("train", options.task, options.training.as_options(), reporter)
    fail = options.training.fail_on_regression
    if directory and (fail or directory.also.exists()):
        from equipoise.evaluate.also import gate_run

        gate_run(directory, reporter, fail=fail)


def probe(options: ProbeOptions, reporter: Reporter) -> None:
    """Do what training does before its first step. Raises `EquipoiseError`."""
    words = replace(options.training.as_options(), probe_only=True)
    _run("probe", options.task, words, reporter)


def _run(verb: str, task: str | None, words: Options, reporter: Reporter) -> "RunDirectory | None":
    task = task or ""
    check_task(task, f"For instance: equipoise {verb} {tasks()[0]}")
    from equipoise.train.start import (
        run,  # takes most of a second to import, for which help does not wait
    )

    return run(task, words, reporter, partial(_plan, words, reporter))


def _plan(words: Options, reporter: Reporter, loaded: "LoadedConfig") -> Mapping[str, str]:
    """Check the other tasks that a run asks, and return the configuration of each."""
    if not loaded.config.equipoise.evaluation.also:
        return {}
    from equipoise.evaluate.also import plan_companions

    return plan_companions(loaded, reporter, dry_run=words.dry_run, ask=words.ask)
