"""Files that the report reads from a run directory; any of them may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass as pydantic_dataclass

from environments.base import UNPARSEABLE, Rollout, Score
from environments.presentation import Presentation
from equipoise.files.errors import EquipoiseError
from equipoise.report.words import (
    STAGES,
    Pair,
    Stage,
    heading,
    level_of,
    metric_name,
    metric_note,
)
from equipoise.run.directory import (
    GREEDY,
    Comparison,
    Evaluation,
    Modes,
    Probe,
    RunDirectory,
    read_content,
)
from equipoise.run.history import Series, read_history
from equipoise.run.ledger import Provenance
from equipoise.run.rollouts import read_kept, read_scored_rollouts
from equipoise.statistics.compare import MetricComparison

Json = Mapping[str, Any]

#: The folder of each stage in a run's directory, and the other way.
FOLDERS: Mapping[Stage, str] = {"before": "baseline", "after": "final"}
STAGE_OF: Mapping[str, Stage] = {folder: stage for stage, folder in FOLDERS.items()}


@dataclass(frozen=True, slots=True)
class Reply:
    """A generation with its score, as the model wrote it.

    `step` is that of a rollout of training.
    """

    rollout: Rollout
    score: Score
    step: int | None = None

    @property
    def unparseable(self) -> str | None:
        """Why the reply could not be read."""
        reason = self.score.evidence.get(UNPARSEABLE)
        return None if reason is None else str(reason)


@pydantic_dataclass(frozen=True, slots=True)
class RunFiles:
    """The contents of a run directory. `evaluations` and `replies` go by stage.

    Two entries of a comparison are one too: `titles` has their names by stage, and their page has
    no viewer. `probe` is what trivial baselines earn, with the trained model beside them where
    there is one. `training` is the sample of the steps' rollouts, in their order.
    """

    name: str = ""
    provenance: Provenance = Provenance()
    config: str = ""
    evaluations: Mapping[Stage, Evaluation] = field(default_factory=dict)
    comparison: Mapping[str, MetricComparison] = field(default_factory=dict)
    history: Mapping[str, Series] = field(default_factory=dict)
    replies: Mapping[Stage, tuple[Reply, ...]] = field(default_factory=dict)
    modes: Modes = Modes()
    probe: Probe = Probe()
    presentation: Presentation = Presentation()
    training: tuple[Reply, ...] = ()
    titles: Mapping[Stage, str] = field(default_factory=dict)

    @property
    def objective(self) -> str:
        """The figure by which trivial baselines are compared; without one the mean reward."""
        return self.latest.objective or self.probe.objective

    def name_of(self, metric: str) -> str:
        return metric_name(metric, self.presentation.words)

    def note_of(self, metric: str) -> str:
        return metric_note(metric, self.presentation.words)

    @property
    def headline(self) -> str:
        """The metric that the outcome is told by: the objective, else the environment's first."""
        metrics = self.latest.metrics
        return self.objective if self.objective in metrics else next(iter(metrics), "")

    @property
    def confidence(self) -> str:
        """The level of the intervals as `95%`; empty where it is not known."""
        return level_of(self.latest.confidence)

    @property
    def latest(self) -> Evaluation:
        stages = self.stages
        return self.evaluations[stages[-1]] if stages else Evaluation()

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in STAGES if stage in self.evaluations)

    @property
    def audited(self) -> bool:
        return self.provenance.audit is not None

    def column_of(self, stage: Stage) -> str:
        return self.titles.get(stage) or heading("evaluated" if self.audited else stage)

    def of_stage(self, stage: Stage) -> str:
        """The words that follow a figure in a sentence; none where there is but one stage."""
        if stage in self.titles:
            return f" with {self.titles[stage]}"
        return "" if self.audited else f" {stage} training"

    def title_of(self, stage: Stage) -> str:
        if stage in self.titles:
            return self.titles[stage]
        return "Evaluated" if self.audited else f"{heading(stage)} training"

    def legend_of(self, stage: Stage) -> str:
        return self.titles.get(stage) or self.title_of(stage).lower()

    def pair(self, metric: str) -> Pair:
        """A metric at each stage that measured it."""
        values = {stage: self.evaluations[stage].metrics.get(metric) for stage in self.stages}
        return {stage: estimate for stage, estimate in values.items() if estimate}

    def greedy_pair(self, metric: str) -> Pair:
        """A metric of replies at temperature 0, at each stage that measured it."""
        greedy = self.probe.baselines.get(GREEDY)
        values = {
            "before": greedy.metrics.get(metric) if greedy else None,
            "after": self.probe.trained_greedy.get(metric),
        }
        stages = ((stage, values[stage]) for stage in self.stages)
        return {stage: estimate for stage, estimate in stages if estimate}

    def cell(self, section: str, key: str, metric: str) -> Pair:
        """A metric of a breakdown at each stage that measured it."""
        sections = {stage: self.evaluations[stage].breakdowns for stage in self.stages}
        values = {s: b.get(section, {}).get(key, {}).get(metric) for s, b in sections.items()}
        return {stage: estimate for stage, estimate in values.items() if estimate}

    @property
    def finished(self) -> bool:
        return "after" in self.evaluations


def read_run(root: Path, *, replies: bool = True) -> RunFiles:
    """Read the files that exist; without `replies` skip the rollouts, which are most of it.

    The caller owns the run. Raises `EquipoiseError` without a directory or for a damaged file.
    """
    if not root.is_dir():
        raise EquipoiseError(
            "report.no-folder",
            f"{root} is not a directory",
            "Name the folder of a run: results/<task>/<run name>.",
        )
    run = RunDirectory(root)
    stages = {s: read_content(run.evaluation(name), Evaluation) for s, name in FOLDERS.items()}
    evaluations = {stage: evaluation for stage, evaluation in stages.items() if evaluation}
    modes = read_content(run.modes, Modes) or Modes()
    latest = list(evaluations.values())[-1:]
    config = run.config.read_text("utf-8", "replace") if run.config.is_file() else ""
    kept = read_kept(run.training) if replies else ()
    return RunFiles(
        name=root.resolve().name,
        provenance=run.ledger.read() if run.provenance.is_file() else Provenance(),
        config=config,
        evaluations=evaluations,
        comparison=(read_content(run.comparison, Comparison) or Comparison()).metrics,
        history=read_history(run.history),
        replies={
            stage: read_replies(run.rollouts(name)) if replies else ()
            for stage, name in FOLDERS.items()
        },
        modes=modes,
        probe=modes.trivial or read_content(run.probe / "probe.json", Probe) or Probe(),
        presentation=latest[0].presentation if latest else Presentation(),
        training=tuple(Reply(rollout, score, step) for step, rollout, score in kept),
    )


def read_replies(path: Path) -> tuple[Reply, ...]:
    return tuple(map(Reply, *read_scored_rollouts(path))) if path.is_file() else ()
