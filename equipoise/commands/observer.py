"""What a run prints, draws and tracks as it goes on."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from equipoise.commands.tracking import Tracker
from equipoise.config import LoadedConfig
from equipoise.files.console import Reporter
from equipoise.report.card import write_card
from equipoise.report.renderers import print_evaluation
from equipoise.report.report import write_report
from equipoise.report.run_files import STAGE_OF
from equipoise.run.directory import RunDirectory
from equipoise.run.job import Observer


class ShownRun(Observer):
    """Tables on the terminal, report.html and the model card."""

    def __init__(self, loaded: LoadedConfig, run: RunDirectory, reporter: Reporter) -> None:
        self.loaded, self.run, self.reporter = loaded, run, reporter

    def evaluated(self, stage: str, evaluation: Mapping[str, Any]) -> None:
        print_evaluation(self.reporter, evaluation, STAGE_OF[stage])

    def report(self) -> None:
        write_report(self.run.root)
        write_card(self.run.root)


class TrackedRun(ShownRun):
    """The same with wandb."""

    def __init__(self, loaded: LoadedConfig, run: RunDirectory, reporter: Reporter) -> None:
        super().__init__(loaded, run, reporter)
        self.tracker = Tracker(loaded, run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tracker.__exit__(kind, error, trace)

    def stepped(self, row: Mapping[str, float | None]) -> None:
        self.tracker.log(row)

    def alarmed(self, text: str) -> None:
        self.tracker.alert(text)
