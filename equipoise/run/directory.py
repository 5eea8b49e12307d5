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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from environments.base import REWARD
from environments.measurement import Direction
from environments.presentation import Presentation
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.files.disk import create_folder, read_model, read_yaml, remove_abandoned, write_json
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.ledger import Ledger, Part
from equipoise.statistics.compare import MetricComparison
from equipoise.statistics.evaluation import Estimate

#: The likeliest replies of a model: those of the trained one are compared with the untrained one's.
GREEDY = "greedy"

#: A folder's name has 255 at most, and the time comes after it.
_LABEL_CHARACTERS = 100


class _Below:
    """A path below the folder of a run."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __get__(self, run: "RunDirectory", _: type) -> Path:
        return run.root.joinpath(*self.parts)


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run, and its ledger; nothing is created by asking for one."""

    root: Path

    config = _Below("config.yaml")
    #: Command, commit, versions, seeds, hashes, seconds.
    provenance = _Below("provenance.json")
    log = _Below("equipoise.log")
    #: The code's diff from the commit; absent where it has none.
    code_diff = _Below("code.diff")
    prompts = _Below("prompts.jsonl")
    reference = _Below("reference.jsonl")
    #: Baseline against final; a run that has it is finished.
    comparison = _Below("comparison.json")
    #: The folder of trivial baselines: what the reward pays for nothing.
    probe = _Below("probe")
    #: Trivial baselines, and other ways of the task's own, beside both stages.
    modes = _Below("modes.json")
    history = _Below("training_history.jsonl")
    #: A sample of the rollouts of training, see rollouts.py.
    training = _Below("training", "rollouts.jsonl")
    checkpoints = _Below("checkpoints")
    #: The trained model or adapter in Hugging Face's format.
    final_checkpoint = _Below("final_checkpoint")
    report = _Below("report.html")
    #: The trained model's likeliest replies, scored; `probe` has the untrained model's.
    greedy = _Below("final", "greedy.jsonl")
    greedy_generations = _Below("final", "greedy_generations.jsonl")

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.provenance)

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
                create_folder(self.folder / name, lambda to: fill(RunDirectory(to), name))  # noqa: B023
            except FileExistsError:
                continue
            return RunDirectory(self.folder / name)
        raise _taken(self.folder / str(self.name))


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


class StoredConfig(BaseModel):
    """Keys of a run's config.yaml that are read before it is loaded."""

    task: str = Field(validation_alias=AliasPath("equipoise", "task"))
    steps: int = Field(validation_alias=AliasPath("grpo", "max_num_steps"))

    @classmethod
    def of(cls, run: RunDirectory) -> "StoredConfig":
        """Read the file. Raises `EquipoiseError` where it is missing or lacks a key."""
        try:
            return cls.model_validate(read_yaml(run.config))
        except OSError as error:
            raise UsageError(
                "entry.no-run",
                f"{run.root} is not a run: {run.config.name}: {error.strerror}",
                "Name the folder of a run, results/<task>/<run name>.",
            ) from None
        except (ValueError, yaml.YAMLError):
            raise EquipoiseError(
                "entry.no-task", f"{run.config} names no task", "Put it back from a copy."
            ) from None


def load_stored(run: RunDirectory) -> LoadedConfig:
    """The configuration of a run, which may be somebody else's. Raises `EquipoiseError`."""
    return load_config(StoredConfig.of(run).task, Options((run.config,), stored=True))


# --- figures in its files -------------------------------------------------------------------------
# They are checked when they are written, and read into the class that wrote them.


class Watched(Part):
    """The metric that the alarm goes by, and which way it is better."""

    metric: str
    better: Direction | None


class _File(Part):
    model_config = ConfigDict(populate_by_name=True)

    schema_: int = Field(default=1, alias="schema")
    confidence: float | None = None


class Evaluation(_File):
    """evaluation.json; a section of the file that is not a field here is a breakdown."""

    task: str = ""
    split: str = ""
    model: str = ""
    n_prompts: int = 0
    n_rollouts: int = 0
    n_failed: int = 0
    failures: Mapping[str, int] = {}
    presentation: Presentation = Presentation()
    metrics: Mapping[str, Estimate] = {}
    breakdowns: Mapping[str, Mapping[str, Mapping[str, Estimate]]] = {}
    objective: str = ""
    watched: Watched | None = None
    prompt_tokens: float = 0
    completion_tokens: float = 0
    generation_time_seconds: float = 0
    scoring_time_seconds: float = 0

    @model_validator(mode="before")
    @classmethod
    def _gather_breakdowns(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        names = {*cls.model_fields, "schema"}
        fields = {name: value for name, value in content.items() if name in names}
        return {"breakdowns": {n: v for n, v in content.items() if n not in names}, **fields}

    @model_serializer(mode="wrap")
    def _flatten_breakdowns(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = write(self)
        breakdowns = content.pop("breakdowns", {})
        return {**content, **breakdowns}


class Comparison(_File):
    """comparison.json: every metric before and after training."""

    before: str = ""
    after: str = ""
    metrics: Mapping[str, MetricComparison] = {}


class ConstantReply(Part):
    """A reply that is given to every prompt, what it is worth, and how many were tried."""

    reply: str
    worth: float | None = None
    tried: int = 1


class BaselineResult(Part):
    """A trivial baseline: what it does and earns, and the trained model minus it."""

    note: str = ""
    metrics: Mapping[str, Estimate] = {}
    against: Mapping[str, MetricComparison] = {}


class Probe(_File):
    """probe.json, and the part of modes.json that sets it against the trained model."""

    objective: str = REWARD
    metric: str = ""
    constants: Mapping[str, ConstantReply] = {}
    ahead: tuple[str, ...] = ()
    baselines: Mapping[str, BaselineResult] = {}
    trained: Mapping[str, Estimate] = {}
    trained_greedy: Mapping[str, Estimate] = {}
    not_beaten: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModePair(MetricComparison):
    """Two of a task's modes compared."""

    modes: tuple[str, ...] = ()


class Modes(_File):
    """modes.json: the task's own modes, where it has some, and trivial baselines."""

    metric: str = ""
    modes: Mapping[str, Mapping[str, Estimate]] = {}
    comparisons: tuple[ModePair, ...] = ()
    seconds: Mapping[str, float | None] = {}
    sources: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    trivial: Probe | None = None


C = TypeVar("C", bound=_File)


def write_content(path: Path, content: _File) -> None:
    write_json(path, content.model_dump(by_alias=True, exclude_unset=True))


def read_content(path: Path, kind: type[C]) -> C | None:
    """Read a file of the run; None if there is none. Raises `EquipoiseError` if it is damaged."""
    if not path.is_file():
        return None
    return read_model(path, kind, "run.damaged-content", "Make it again.")
