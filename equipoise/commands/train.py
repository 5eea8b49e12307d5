"""`equipoise train` and `equipoise probe`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Suppress, arg

from equipoise.config.compose import Options, check_task, tasks
from equipoise.config.words import Task, Training, TrainingWords
from equipoise.files.console import Reporter


@dataclass(frozen=True, slots=True)
class TrainOptions:  # noqa: D101  words and text of a training recipe
    __doc__ = TrainingWords.__doc__
    task: Task = None
    training: Training = field(default_factory=TrainingWords)


@dataclass(frozen=True, slots=True)
class ProbeWords(TrainingWords):
    """The words of training without those of its steps, which help does not show."""

    resume: Annotated[Path | None, Suppress] = None
    planner_only: Annotated[bool, Suppress] = False
    rehearse: Annotated[bool, Suppress] = False
    iterations: Annotated[int | None, Suppress] = None


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Show what the reward of a task pays for nothing.

    The words are those of training, and `equipoise train --help` says which of them wins.

    Examples:
        equipoise probe TASK    # with the small local model
        equipoise probe TASK --config nemo_configs/small.yaml    # a 0.5B model on one GPU
    """

    task: Task = None
    training: Annotated[ProbeWords, arg(name="")] = field(default_factory=ProbeWords)


def run(options: TrainOptions, reporter: Reporter) -> None:
    _run("train", options.task, options.training.as_options(), reporter)


def probe(options: ProbeOptions, reporter: Reporter) -> None:
    """Run the stages of training before its first step. Raises `EquipoiseError`."""
    words = replace(options.training.as_options(), probe_only=True)
    _run("probe", options.task, words, reporter)


def _run(verb: str, task: str | None, words: Options, reporter: Reporter) -> None:
    task = task or ""
    check_task(task, f"For instance: equipoise {verb} {tasks()[0]}")
    from equipoise.commands.start import (
        run,  # takes most of a second to import, for which help does not wait
    )

    run(task, words, reporter)
