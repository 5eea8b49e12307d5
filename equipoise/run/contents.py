"""Figures in the files of a run, as classes: what is written is checked against them, and read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError, model_validator

from environments.base import REWARD
from environments.measurement import Direction
from environments.presentation import Presentation
from equipoise.files.disk import read_json
from equipoise.files.errors import EquipoiseError
from equipoise.run.ledger import Part
from equipoise.statistics.compare import MetricComparison


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, what sampling noise alone would give, and its p-values."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    floor_high: float | None = None
    p: float | None = None
    p_holm: float | None = None


class Watched(Part):
    """The metric that the alarm goes by, and which way it is better."""

    metric: str
    better: Direction | None


class _File(Part):
    schema_: int = Field(default=1, validation_alias="schema")
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
    #: Section -> key -> metric.
    breakdowns: Mapping[str, Mapping[str, Mapping[str, Estimate | None]]] = {}
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


class Policy(Part):
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
    policies: Mapping[str, Policy] = {}
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


def read_content(path: Path, kind: type[C]) -> C | None:
    """Read a file of the run; None if there is none. Raises `EquipoiseError` if it is damaged."""
    if not path.is_file():
        return None
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise EquipoiseError(
            "run.damaged-content", f"{path}: {where}: {first['msg']}", "Make it again."
        ) from None
    except ValueError as error:
        raise EquipoiseError("run.damaged-content", str(error), "Make it again.") from error
