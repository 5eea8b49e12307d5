"""Run the grid of a sweep on this machine, one run after another, without an account.

    uv run docs/experiments/sweep.py nemo_configs/sweeps/dharma.yaml --dry-run
    uv run docs/experiments/sweep.py nemo_configs/sweeps/dharma.yaml --test-seeds 11 12 13

A cell is one value of each parameter but the seed. Every cell is trained with the sweep's seeds and
judged on the validation split. Chosen is the cell that lost fewest guards, of these the one with
the best mean of the sweep's metric. It alone is trained with the seeds for the test, which chose
nothing, and judged on the test split. What is finished is not repeated: a sweep that was stopped
goes on. The tables go to <task>.md in the output folder, the runs of a cell into a folder beside.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import seeds
import yaml

from environments.base import VALIDATION_SPLIT
from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.errors import EquipoiseError
from equipoise.report.run_files import read_run
from equipoise.run.directory import RunDirectory
from equipoise.train.stages.tracking import summary

#: One value of each parameter, by its key.
Cell = Mapping[str, Any]

SEED, SPLIT = "grpo.seed", "equipoise.evaluation.split"
#: The words of `command` around those of the recipe.
STARTED, CHOSEN = ["uv", "run", "${program}", "--config"], "${args_no_hyphens}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid of wandb's, and the metric by which a cell is chosen."""

    task: str
    config: Path
    metric: str
    goal: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A cell on the validation split: its metric by seed, and how many guards were lost."""

    cell: Cell
    values: tuple[float, ...] = ()
    lost: int = 0


def read_sweep(path: Path) -> Sweep:
    """Read a sweep whose parameters all have values. Raises `ValueError` for another."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    command, metric = content["command"], content["metric"]
    if command[:4] != STARTED or command[5:] != [CHOSEN]:
        raise ValueError(f"the command is not: {' '.join(STARTED)} FILE {CHOSEN}")
    values = {key: values_of(key, parameter) for key, parameter in content["parameters"].items()}
    numbers, split = values.pop(SEED, []), values.pop(SPLIT, None)
    if not numbers or split != [VALIDATION_SPLIT]:
        raise ValueError(f"it needs values of {SEED}, and {SPLIT}: {{value: {VALIDATION_SPLIT}}}")
    return Sweep(
        task=Path(content["program"]).stem.removeprefix("grpo_"),
        config=seeds.ROOT / command[4],
        metric=metric["name"],
        goal=metric["goal"],
        seeds=tuple(numbers),
        cells=tuple(dict(zip(values, cell, strict=True)) for cell in product(*values.values())),
    )


def values_of(key: str, parameter: Mapping[str, Any]) -> list[Any]:
    """The values of a parameter."""
    if "value" in parameter:
        return [parameter["value"]]
    if "values" not in parameter:
        raise ValueError(f"{key} has no values: a range has no grid")
    return list(parameter["values"])


def check(sweep: Sweep) -> None:
    """Load the configuration of every cell. Raises `EquipoiseError` before anything is trained."""
    for cell in sweep.cells:
        load_config(sweep.task, parse_flags("", ["--config", str(sweep.config), *words_of(cell)]))


def words_of(cell: Cell) -> list[str]:
    """The words of a command line that set these values."""
    return [f"{key}={value}" for key, value in cell.items()]


def folder_of(cell: Cell, output: Path) -> Path:
    """The folder of a cell's runs, named by its values and the last part of each key."""
    return output / ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in cell.items())


def arguments_of(
    sweep: Sweep, cell: Cell, numbers: Sequence[int], split: str, output: Path
) -> list[str]:
    """The command line of seeds.py for a cell."""
    return [
        *(sweep.task, "--seeds", *map(str, numbers), "--split", split, "--config"),
        *(str(sweep.config), "--output", str(folder_of(cell, output)), "--", *words_of(cell)),
    ]


def run_cell(sweep: Sweep, cell: Cell, output: Path) -> Result:
    """Train a cell with every seed unless that was done; one that failed has no values."""
    options = seeds.parse_options(arguments_of(sweep, cell, sweep.seeds, VALIDATION_SPLIT, output))
    try:
        figures = [figures_of(seeds.train(sweep.task, seed, options)) for seed in sweep.seeds]
        values = tuple(float(figure[sweep.metric]) for figure in figures)
    except (subprocess.CalledProcessError, KeyError) as error:
        unknown = f"no {sweep.metric}, too few replies could be read or scored"
        told = unknown if isinstance(error, KeyError) else error
        print(f"failed: {' '.join(words_of(cell))}: {told}")
        return Result(cell)
    return Result(
        cell,
        values,
        sum(name.startswith("guard/") and v == "lost" for f in figures for name, v in f.items()),
    )


def figures_of(run: Path) -> dict[str, float | str]:
    """Return wandb's figures of a run, by their names there."""
    return dict(summary(read_run(run, replies=False)))


def best(results: Sequence[Result], goal: str) -> Result | None:
    """The cell that lost fewest guards, of these the one with the best mean; None if all failed."""
    sign = 1 if goal == "maximize" else -1
    finished = [result for result in results if result.values]
    return max(finished, key=lambda r: (-r.lost, sign * fmean(r.values)), default=None)


def table(sweep: Sweep, results: Sequence[Result], chosen: Result | None) -> str:
    """The cells on the validation split as Markdown."""
    head = [*sweep.cells[0], f"{sweep.metric}: mean", "by seed", "guards lost", ""]
    rows = [
        [
            *map(str, result.cell.values()),
            f"{fmean(result.values):.3f}" if result.values else "failed",
            ", ".join(f"{value:.3f}" for value in result.values),
            str(result.lost) if result.values else "",
            "chosen" if result is chosen else "",
        ]
        for result in results
    ]
    lines = [head, ["---"] * len(head), *rows]
    caption = f"Validation split, seeds {', '.join(map(str, sweep.seeds))}, {sweep.goal}."
    return "\n".join([caption, "", *(f"| {' | '.join(cells)} |" for cells in lines), ""])


def plan(sweep: Sweep, options: argparse.Namespace) -> str:
    """The cells and how many runs there are to do."""
    runs = [
        RunDirectory(folder_of(cell, options.output) / sweep.task / f"{VALIDATION_SPLIT}-{seed}")
        for cell in sweep.cells
        for seed in sweep.seeds
    ]
    done = sum(run.comparison.exists() for run in runs)
    return "\n".join(
        [
            f"{sweep.task}: {len(sweep.cells)} cells, seeds {' '.join(map(str, sweep.seeds))} on "
            f"validation: {len(runs)} runs, {done} of them done",
            *(f"  {' '.join(words_of(cell))}" for cell in sweep.cells),
            f"then the best cell, seeds {' '.join(map(str, options.test_seeds))} on test: "
            f"{len(options.test_seeds)} runs",
        ]
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sweep", type=Path, help="a file of nemo_configs/sweeps")
    parser.add_argument("--test-seeds", type=int, nargs="+", metavar="N", default=[11, 12, 13])
    parser.add_argument("--output", type=Path, default=seeds.ROOT / "results" / "sweeps")
    parser.add_argument("--dry-run", action="store_true", help="list the cells and train nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then write and print the tables."""
    options = parse_options(arguments)
    try:
        sweep = read_sweep(options.sweep)
        check(sweep)
    except (EquipoiseError, ValueError, KeyError, OSError) as error:
        sys.exit(f"error: {options.sweep}: {error}")
    if overlap := set(sweep.seeds) & set(options.test_seeds):
        sys.exit(f"error: --test-seeds: {min(overlap)} is one of the seeds that choose")
    print(plan(sweep, options))
    if options.dry_run:
        return
    results = [run_cell(sweep, cell, options.output) for cell in sweep.cells]
    chosen = best(results, sweep.goal)
    validation = table(sweep, results, chosen)
    print(validation)
    if chosen is None:
        sys.exit("error: every cell failed")
    seeds.main(arguments_of(sweep, chosen.cell, options.test_seeds, "test", options.output))
    tested = folder_of(chosen.cell, options.output) / sweep.task / "seeds.md"
    page = (
        f"{validation}\nThe chosen cell on the test split.\n\n{tested.read_text(encoding='utf-8')}"
    )
    (options.output / f"{sweep.task}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
