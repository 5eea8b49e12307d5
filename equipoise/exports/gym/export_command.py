"""`equipoise export gym`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from equipoise.run.directory import RunDirectory
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import DryRun, RunFolder, Unsealed, option


@dataclass(frozen=True, slots=True)
class GymOptions:
    """Export a task for NeMo Gym: the folder with which it serves the rewards.

    Server, configuration, manifest, data. RUN has the environment's settings, the prompts and the
    frozen model's rollouts; it is not changed.

    Examples:
        equipoise export gym results/TASK/RUN --output-dir gym/TASK
        gym env validate gym/TASK/environments/equipoise_TASK/manifest.yaml
    """

    run: RunFolder
    output_dir: Annotated[Path, option("a new folder", "DIR")]
    in_flight: Annotated[
        int | None, option("Gym's limit of requests (num_samples_in_parallel), if any", "N")
    ] = None
    unsealed: Unsealed = False
    dry_run: DryRun = False


def run(options: GymOptions, reporter: Reporter) -> None:
    """Write the folder. Raises `EquipoiseError`."""
    from equipoise.exports.gym.export import export  # it brings what takes a second to import
    from equipoise.exports.rewards.of_run import write_export

    write = partial(
        export, RunDirectory(options.run), in_flight=options.in_flight, unsealed=options.unsealed
    )
    write_export(write, options.output_dir, reporter, dry_run=options.dry_run)
