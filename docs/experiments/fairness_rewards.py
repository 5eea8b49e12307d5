"""Train every reward over several seeds and print how each fares.

    uv run docs/experiments/fairness_rewards.py --split validation --seeds 0 1 2
    uv run docs/experiments/fairness_rewards.py --split test --seeds 10 11 12 13 14

Each run is the fairness recipe in a process of its own, with its own data split, local model and
training seed. A finished run is not repeated.
"""

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.run.kept_files import UNSEALED, open_run, unsealed_note
from equipoise.terminal.options import UNSEALED_HELP

#: Metric -> its value, floor, interval.
Figures = Mapping[str, Mapping[str, float]]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "grpo_fairness.py"
#: Metrics of which a table shows the change as a share of what they were.
EFFECTS = {
    "slope": "clinical_slope",
    "occupation": "occupation_effect",
    "age": "age_effect",
    "spread": "decision_spread",
    "mean": "mean_invasiveness",
}
FIGURES = (
    "excess cut",
    "new combination",
    "new injury",
    "named",
    "implied",
    *EFFECTS,
    "emergencies",
    "case error",
    "parse rate",
    "CPU seconds",
)


def _weights(other_races: float, reference: float) -> tuple[str, str]:
    return (
        f"env.fairness.counterfactual_weight={other_races}",
        f"env.fairness.reference_weight={reference}",
    )


#: What each variant changes of nemo_configs/local.yaml.
VARIANTS: Mapping[str, Sequence[str]] = {
    "default": (),
    "distribution 1:1": _weights(1, 1),
    "distribution 1:0": _weights(1, 0),
    "distribution 0:1": _weights(0, 1),
    "distance 1:1": ("env.fairness.reward=distance", *_weights(1, 1)),
    "distance 1:0": ("env.fairness.reward=distance", *_weights(1, 0)),
    "distance 0:1": ("env.fairness.reward=distance", *_weights(0, 1)),
    "group_mean": ("env.fairness.reward=group_mean", *_weights(1, 0)),
    "whole model": (
        "policy.dtensor_cfg.lora_cfg.enabled=false",
        "policy.optimizer.kwargs.lr=4e-3",
    ),
}


def train(variant: str, seed: int, split: str, output: Path) -> Path:
    """Run the recipe unless it has been run; the folder of the run."""
    name = f"{variant}-{split}-{seed}".replace(" ", "-").replace(":", "-")
    folder = output / "fairness" / name
    if (folder / "comparison.json").exists():
        return folder
    command = [sys.executable, str(RECIPE), "--run-name", name, "--output-dir", str(output)]
    command += ["--seed", str(seed), "--no-wandb", f"equipoise.evaluation.split={split}"]
    command += VARIANTS[variant]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (folder / "cpu_seconds.txt").write_text(f"{seconds:.1f}\n")
    return folder


def figures(folder: Path, *, unsealed: bool) -> dict[str, float]:
    """Return how much of the excess ratio a run cut, and what changed besides."""
    if accepted := open_run(folder, unsealed=unsealed).unsealed:
        print(unsealed_note(f"{folder}/{part}" for part in accepted))
    before, after = (evaluation(folder, stage) for stage in ("baseline", "final"))
    parts = before["by_hold_out"].keys() | before["by_cue"].keys()
    pairs = {
        "excess cut": (before["metrics"], after["metrics"]),
        **{
            part: (before[section][part], after[section][part])
            for section in ("by_hold_out", "by_cue")
            for part in parts & before[section].keys()
        },
    }
    was, became = before["metrics"], after["metrics"]
    return {
        **{name: excess_cut(*pair) for name, pair in pairs.items()},
        **{name: became[of]["value"] / was[of]["value"] - 1 for name, of in EFFECTS.items()},
        "emergencies": became["emergency_surgery"]["value"] - was["emergency_surgery"]["value"],
        "case error": became["case_error"]["value"],
        "parse rate": became["parse_rate"]["value"],
        "CPU seconds": float((folder / "cpu_seconds.txt").read_text()),
    }


def excess_cut(before: Figures, after: Figures) -> float:
    """By how much the excess of the disparity ratio over its floor fell; 1 is all of it."""
    was, became = (
        metrics["disparity_ratio"]["value"] - metrics["disparity_ratio"]["floor"]
        for metrics in (before, after)
    )
    return 1 - became / was


def evaluation(folder: Path, stage: str) -> dict[str, dict[str, Any]]:
    """The evaluation of a stage; what is not defined is NaN (the ratio of means that are zero)."""
    text = (folder / stage / "evaluation.json").read_text(encoding="utf-8")
    read: dict[str, dict[str, Any]] = json.loads(text, object_hook=_nan_for_none)
    return read


def _nan_for_none(read: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in read.items()}


def row(name: str, values: Sequence[Mapping[str, float]]) -> str:
    """A line of Markdown: mean and standard deviation over the seeds."""
    cells = [cell([value[figure] for value in values]) for figure in FIGURES]
    return f"| {name} | " + " | ".join(cells) + " |"


def cell(values: Sequence[float]) -> str:
    """One figure over the seeds."""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"


def main() -> None:
    """Train what is missing, then print the table, and a row per seed as CSV beside the runs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--split", choices=("validation", "test"), required=True)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "rewards")
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    options = parser.parse_args()
    achieved: dict[str, list[dict[str, float]]] = {}
    for variant in options.only:
        runs = (train(variant, s, options.split, options.output) for s in options.seeds)
        try:
            achieved[variant] = [figures(run, unsealed=options.unsealed) for run in runs]
        except EquipoiseError as error:
            sys.exit(f"error: {error}")
    print(f"| reward | {' | '.join(FIGURES)} |\n|{'---|' * (len(FIGURES) + 1)}")
    for variant, values in achieved.items():
        print(row(variant, values))
    write_seeds(options.output / f"{options.split}.csv", achieved, options.seeds)


def write_seeds(
    path: Path, achieved: Mapping[str, Sequence[Mapping[str, float]]], seeds: Sequence[int]
) -> None:
    """Keep every run's figures."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["reward", "seed", *FIGURES])
        for variant, values in achieved.items():
            for seed, value in zip(seeds, values, strict=True):
                writer.writerow([variant, seed, *(f"{value[name]:.4f}" for name in FIGURES)])


if __name__ == "__main__":
    main()
