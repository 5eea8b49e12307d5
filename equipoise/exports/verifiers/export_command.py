"""`equipoise export verifiers`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from equipoise.run.directory import RunDirectory
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import DryRun, RunFolder, Unsealed, option


@dataclass(frozen=True, slots=True)
class VerifiersOptions:
    """Export a task for verifiers: the package with which it, and so prime-rl, trains.

    RUN has the environment's settings, the prompts and the frozen model's rollouts; it is not
    changed.

    Examples:
        equipoise export verifiers results/TASK/RUN --output-dir verifiers/TASK
        uv pip install -e verifiers/TASK
        vf-eval equipoise-TASK --client.base-url http://localhost:8000/v1 --model MODEL --no-push
    """

    run: RunFolder
    output_dir: Annotated[Path, option("a new folder", "DIR")]
    unsealed: Unsealed = False
    dry_run: DryRun = False


def run(options: VerifiersOptions, reporter: Reporter) -> None:
    """Write the folder. Raises `EquipoiseError`."""
    from equipoise.exports.rewards.of_run import write_export
    from equipoise.exports.verifiers.export import export  # it brings what takes a second to import

    write = partial(export, RunDirectory(options.run), unsealed=options.unsealed)
    write_export(write, options.output_dir, reporter, dry_run=options.dry_run)
