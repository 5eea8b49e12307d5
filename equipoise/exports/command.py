"""`equipoise export gym` and `equipoise export verifiers`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from equipoise.config.task_code import import_own_code
from equipoise.run.directory import RunDirectory
from equipoise.terminal.console import Column, Reporter
from equipoise.terminal.options import DryRun, OwnCode, RunFolder, Unsealed, option

OutputDir = Annotated[Path, option("a new folder", "DIR")]


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
    output_dir: OutputDir
    in_flight: Annotated[
        int | None, option("Gym's limit of requests (num_samples_in_parallel), if any", "N")
    ] = None
    unsealed: Unsealed = False
    own_code: OwnCode = None
    dry_run: DryRun = False


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
    output_dir: OutputDir
    unsealed: Unsealed = False
    own_code: OwnCode = None
    dry_run: DryRun = False


def gym(options: GymOptions, reporter: Reporter) -> None:
    """Write the folder for NeMo Gym. Raises `EquipoiseError`."""
    from equipoise.exports.gym.export import export  # it brings what takes a second to import

    write = partial(export, RunDirectory(options.run), in_flight=options.in_flight)
    _write(write, options, reporter)


def verifiers(options: VerifiersOptions, reporter: Reporter) -> None:
    """Write the package for verifiers. Raises `EquipoiseError`."""
    from equipoise.exports.verifiers.export import export

    _write(partial(export, RunDirectory(options.run)), options, reporter)


def _write(
    export: Callable[..., list[str]], options: GymOptions | VerifiersOptions, reporter: Reporter
) -> None:
    """Write into a new folder and say so; a dry run writes into a scratch one and lists it."""
    from equipoise.exports.task import refuse_used_folder

    if options.own_code:
        import_own_code(options.own_code)
    folder = options.output_dir
    if not options.dry_run:
        reporter.say("\n".join(export(folder=folder, unsealed=options.unsealed)))
        return
    refuse_used_folder(folder)
    with TemporaryDirectory() as scratch:
        lines = export(folder=Path(scratch), unsealed=options.unsealed)
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        rows = [(str(p.relative_to(scratch)), f"{p.stat().st_size / 1e3:,.1f} kB") for p in files]
    columns = [Column("file", folds=True), Column("size")]
    reporter.table(f"What would be written to {folder}", columns, rows)
    reporter.say("\n".join(lines).replace(scratch, str(folder)))
