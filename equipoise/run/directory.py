"""The run directory: one place for everything that a run leaves behind.

results/<task>/<name>/
  config.yaml  provenance.json  manifest.json  prompts.jsonl  reference.jsonl
  baseline/  final/         rollouts.jsonl, evaluation.json, of the trained model greedy.jsonl
  probe/                    probe.json, and the scored replies of trivial baselines
  comparison.json           before against after, metric by metric
  training_history.jsonl      one row per step
  training/                 rollouts.jsonl, a sample of each step's
  checkpoints/              to resume from
  final_checkpoint/         the trained model or adapter, with its model card
  report.html  equipoise.log
"""

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import yaml

from equipoise.files.disk import create_folder, remove_abandoned
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.yaml_text import read_yaml
from equipoise.run.ledger import Ledger

#: A folder's name has 255 at most, and the time comes after it.
_LABEL_CHARACTERS = 100
_TASK = re.compile(r"[\w-]+")  # a name, which becomes one of a YAML file


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run, and its ledger; nothing is created by asking for one."""

    root: Path

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.provenance)

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def provenance(self) -> Path:
        """Command, commit, versions, seeds, hashes, seconds."""
        return self.root / "provenance.json"

    @property
    def log(self) -> Path:
        return self.root / "equipoise.log"

    @property
    def code_diff(self) -> Path:
        """The code's diff from the commit; absent where it has none."""
        return self.root / "code.diff"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.jsonl"

    @property
    def reference(self) -> Path:
        return self.root / "reference.jsonl"

    @property
    def comparison(self) -> Path:
        """Baseline against final; a run that has it is finished."""
        return self.root / "comparison.json"

    @property
    def probe(self) -> Path:
        """The folder of trivial baselines: what the reward pays for nothing."""
        return self.root / "probe"

    @property
    def modes(self) -> Path:
        """Trivial baselines, and other ways of the task's own, beside both stages."""
        return self.root / "modes.json"

    @property
    def history(self) -> Path:
        return self.root / "training_history.jsonl"

    @property
    def training(self) -> Path:
        """A sample of the rollouts of training, see rollouts.py."""
        return self.root / "training" / "rollouts.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def final_checkpoint(self) -> Path:
        """The trained model or adapter in Hugging Face's format."""
        return self.root / "final_checkpoint"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def greedy(self) -> Path:
        """The trained model's likeliest replies, scored; `probe` has the untrained model's."""
        return self.rollouts("final").with_name("greedy.jsonl")

    def generations(self, stage: str) -> Path:
        """Generations of a stage that is not scored yet."""
        return self.root / stage / "generations.jsonl"

    def rollouts(self, stage: str) -> Path:
        return self.root / stage / "rollouts.jsonl"

    def evaluation(self, stage: str) -> Path:
        return self.root / stage / "evaluation.json"

    def is_evaluated(self, stage: str) -> bool:
        """Whether a stage is finished: measured and sealed, with nothing left to be scored."""
        return self.evaluation(stage).exists() and not self.generations(stage).exists()


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run directory to be; nothing is kept of a run that could not start.

    Without a `name` of the user's it is called after what it trains and the time.
    """

    folder: Path  # output_dir/task
    name: str | None
    label: str
    started: datetime

    def check(self) -> None:
        """Raise `UsageError` for a folder that cannot be written to or a name that is taken."""
        usable_folder(self.folder, "--output-dir")
        root = self.folder / (self.name or "")
        if self.name and root.exists() and not (root.is_dir() and not any(root.iterdir())):
            raise _taken(root)

    def create(self, fill: Callable[[RunDirectory, str], None]) -> RunDirectory:
        """The directory with what `fill` writes, given its name; it appears whole.

        Raises `UsageError` when the user's name has been taken meanwhile.
        """
        remove_abandoned(self.folder)
        dated = f"{self.label}-{self.started:%Y%m%d-%H%M%S}"
        numbered = (f"{dated}-{number}" for number in itertools.count(2))
        for name in [self.name] if self.name else itertools.chain([dated], numbered):
            try:
                create_folder(self.folder / name, partial(_fill, fill, name))
            except FileExistsError:
                continue
            return RunDirectory(self.folder / name)
        raise _taken(self.folder / str(self.name))


def _fill(fill: Callable[[RunDirectory, str], None], name: str, folder: Path) -> None:
    fill(RunDirectory(folder), name)


def model_label(model: str) -> str:
    """The last part of a model's name or folder, as a part of a folder's name."""
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name)[:_LABEL_CHARACTERS]
    return label.strip("-._") or "run"


def usable_folder(folder: Path, flag: str) -> None:
    """Make the folder. Raises `UsageError` when it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written to"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise UsageError(
            "run.unusable-folder",
            f"the folder {folder} cannot be used: {reason}",
            f"Choose another with {flag}.",
        )


def _taken(root: Path) -> UsageError:
    if RunDirectory(root).config.is_file():
        remedy = f"Continue it with --resume {root}, or choose another --run-name."
        return UsageError("run.existing-run", f"the run {root} exists already", remedy)
    return UsageError(
        "run.existing-folder",
        f"{root} exists already and is not a run",
        "Choose another --run-name, or remove it if you do not need it.",
    )


def open_run_directory(root: Path) -> RunDirectory:
    """The directory of a run that `--resume` continues."""
    run = RunDirectory(root)
    for file in (run.config, run.provenance):
        if not file.is_file():
            raise UsageError(
                "resume.no-run",
                f"{root} is not a run to resume: it has no {file.name}",
                "Name the folder of a run, results/<task>/<run name>.",
            )
    return run


def task_of(run: RunDirectory) -> str:
    """The task that a run's configuration names. Raises `EquipoiseError`."""
    try:
        task = read_yaml(run.config)["equipoise"]["task"]
        if not isinstance(task, str) or not _TASK.fullmatch(task):
            raise ValueError("no name")
        return task
    except OSError as error:
        raise UsageError(
            "entry.no-run",
            f"{run.root} is not a run: {run.config.name}: {error.strerror}",
            "Name the folder of a run, results/<task>/<run name>.",
        ) from None
    except (TypeError, KeyError, ValueError, yaml.YAMLError):
        raise EquipoiseError(
            "entry.no-task", f"{run.config} names no task", "Put it back from a copy."
        ) from None
