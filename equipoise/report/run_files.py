"""Files that the report reads from a run directory; any of them may be missing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.base import REWARD, UNPARSEABLE, Rollout, Score
from environments.presentation import Presentation
from equipoise.files.disk import read_json
from equipoise.files.errors import EquipoiseError
from equipoise.report.words import (
    STAGES,
    Pair,
    Stage,
    heading,
    metric_name,
    metric_note,
    read_estimate,
)
from equipoise.run.directory import RunDirectory
from equipoise.run.history import Series, read_history
from equipoise.run.rollouts import read_kept, read_scored_rollouts

Json = Mapping[str, Any]

#: The folder of each stage in a run's directory, and the other way.
FOLDERS: Mapping[Stage, str] = {"before": "baseline", "after": "final"}
STAGE_OF: Mapping[str, Stage] = {folder: stage for stage, folder in FOLDERS.items()}
_NOTHING_SAID = Presentation()


@dataclass(frozen=True, slots=True)
class Reply:
    """A generation as the report needs it; texts are as the model wrote them.

    `step` is that of a rollout of training.
    """

    set_id: str
    metadata: Json
    prompt: str
    completion: str
    error: str | None
    evidence: Json
    prompt_id: str = ""
    value: float | None = None
    components: Json = field(default_factory=dict)
    failure_kind: str = ""
    step: int | None = None

    @classmethod
    def of(cls, rollout: Rollout, score: Score, step: int | None = None) -> "Reply":
        """Join a rollout with its score."""
        error = score.error
        return cls(
            rollout.set_id,
            rollout.metadata,
            rollout.prompt,
            rollout.completion,
            error.text if error else None,
            score.evidence,
            rollout.prompt_id,
            score.value,
            score.components,
            error.kind if error else "",
            step,
        )

    @property
    def unparseable(self) -> str | None:
        """Why the reply could not be read."""
        reason = self.evidence.get(UNPARSEABLE)
        return None if reason is None else str(reason)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The contents of a run directory. `evaluations` and `replies` go by stage.

    `probe` is what policies without skill earn, with the trained model beside them where there is
    one. `training` is the sample of the steps' rollouts, in their order.
    """

    name: str = ""
    provenance: Json = field(default_factory=dict)
    config: str = ""
    evaluations: Mapping[Stage, Json] = field(default_factory=dict)
    comparison: Json = field(default_factory=dict)
    history: Mapping[str, Series] = field(default_factory=dict)
    replies: Mapping[Stage, tuple[Reply, ...]] = field(default_factory=dict)
    modes: Json = field(default_factory=dict)
    probe: Json = field(default_factory=dict)
    presentation: Presentation = _NOTHING_SAID
    training: tuple[Reply, ...] = ()

    @property
    def trivial(self) -> Json:
        """Policies without skill against the trained model; empty before there is one."""
        return as_object(self.modes.get("trivial"))

    @property
    def objective(self) -> str:
        """The figure by which policies are compared; the mean reward where nothing else is said."""
        return str(self.latest.get("objective") or self.probe.get("objective") or REWARD)

    def name_of(self, metric: str) -> str:
        return metric_name(metric, self.presentation.words)

    def note_of(self, metric: str) -> str:
        return metric_note(metric, self.presentation.words)

    @property
    def latest(self) -> Json:
        return self.evaluations.get("after") or self.evaluations.get("before") or {}

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in STAGES if stage in self.evaluations)

    @property
    def audited(self) -> bool:
        return isinstance(self.provenance.get("audit"), dict)

    @property
    def own_reference(self) -> bool:
        """Whether an audited model is compared with what it decides itself when asked so."""
        return value_at(self.provenance, "audit", "own_reference") is True

    def when(self, stage: Stage) -> str:
        return "evaluated" if self.audited else stage

    def title_of(self, stage: Stage) -> str:
        return "Evaluated" if self.audited else f"{heading(stage)} training"

    def pair(self, *keys: str) -> Pair:
        """The estimates under these keys of each evaluation."""
        values = {stage: value_at(self.evaluations[stage], *keys) for stage in self.stages}
        return {s: estimate for s, value in values.items() if (estimate := read_estimate(value))}

    @property
    def finished(self) -> bool:
        return "after" in self.evaluations


def read_run(root: Path, *, replies: bool = True) -> RunFiles:
    """Read what is there, without `replies` all but the rollouts, which are most of it.

    The caller owns the run. Raises `EquipoiseError` without a directory or for a damaged file.
    """
    if not root.is_dir():
        raise EquipoiseError(
            "report.no-folder",
            f"{root} is no directory",
            "Name the folder of a run: results/<task>/<run name>.",
        )
    try:
        return _read(root, replies)
    except ValueError as error:
        raise EquipoiseError(
            "report.damaged-file", f"a file of the run is damaged: {error}", "Make it again."
        ) from error


def _read(root: Path, replies: bool) -> RunFiles:
    run = RunDirectory(root)
    stages = {stage: read_object(run.evaluation(name)) for stage, name in FOLDERS.items()}
    return RunFiles(
        name=root.resolve().name,
        provenance=read_object(run.provenance),
        config=(
            run.config.read_text(encoding="utf-8", errors="replace") if run.config.is_file() else ""
        ),
        evaluations={stage: evaluation for stage, evaluation in stages.items() if evaluation},
        comparison=read_object(run.comparison),
        history=read_history(run.history),
        replies={
            stage: tuple(_read_replies(run.rollouts(name)) if replies else ())
            for stage, name in FOLDERS.items()
        },
        modes=(modes := read_object(run.modes)),
        probe=as_object(modes.get("trivial")) or read_object(run.probe / "probe.json"),
        presentation=read_presentation(stages["after"] or stages["before"]),
        training=tuple(
            Reply.of(rollout, score, step) for step, rollout, score in read_kept(run.training)
        )
        if replies
        else (),
    )


def read_presentation(evaluation: Json) -> Presentation:
    """Read the task's presentation in an evaluation.json. Raises `ValueError` if damaged."""
    return Presentation.from_json(evaluation.get("presentation", {}))


def read_object(path: Path) -> Json:
    """The JSON object of a file; empty if there is none. Raises `ValueError` for damage."""
    if not path.is_file():
        return {}
    return as_object(read_json(path))


def _read_replies(path: Path) -> Iterator[Reply]:
    if path.is_file():
        yield from map(Reply.of, *read_scored_rollouts(path))


def value_at(value: Any, *keys: str) -> Any:
    """The JSON value under these keys, one within the other; None where one is missing."""
    for key in keys:
        value = as_object(value).get(key)
    return value


def as_object(value: Any) -> Json:
    """A JSON value that should be an object; empty for any other."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A JSON value that should be a list; empty for any other."""
    return value if isinstance(value, list) else []
