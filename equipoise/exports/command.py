"""`equipoise export gym` and `equipoise export verifiers`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from equipoise.config.task_code import import_own_code
from equipoise.files.console import Reporter
from equipoise.files.options import OwnCode, RunFolder, option
from equipoise.run.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Export a run's task: the folder that serves its rewards in NeMo Gym, or verifiers' package.

    It refers to RUN, which has the settings, the prompts and the frozen model's rollouts, and is
    not changed. docs/elsewhere.md says how to go on.

    Examples:
        equipoise export gym results/TASK/RUN --output-dir gym/TASK
        equipoise export verifiers results/TASK/RUN --output-dir verifiers/TASK
    """

    run: RunFolder
    output_dir: Annotated[Path, option("a new folder", "DIR")]
    own_code: OwnCode = None


def gym(options: ExportOptions, reporter: Reporter) -> None:
    """Write the folder for NeMo Gym. Raises `EquipoiseError`."""
    from equipoise.exports.gym.export import export  # it brings what takes a second to import

    _write(export, options, reporter)


def verifiers(options: ExportOptions, reporter: Reporter) -> None:
    """Write the package for verifiers. Raises `EquipoiseError`."""
    from equipoise.exports.verifiers.export import export

    _write(export, options, reporter)


def _write(export: Callable[..., list[str]], options: ExportOptions, reporter: Reporter) -> None:
    if options.own_code:
        import_own_code(options.own_code)
    reporter.say("\n".join(export(RunDirectory(options.run), options.output_dir)))
