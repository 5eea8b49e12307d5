"""Two runs of one configuration by different engines: their curves beside each other.

    python docs/experiments/compare_engines.py results/fairness/<local run> \
        results/fairness/<its rehearsal> docs/images/engines.svg
"""

import csv
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

PANELS = {
    "env/disparity_ratio": "disparity ratio of a step",
    "env/clinical_slope": "clinical slope",
    "reward": "reward",
}
WINDOW = 5


def column(run: Path, name: str) -> np.ndarray:
    """A column of training_history.csv, [steps]; NaN where it is empty."""
    with (run / "training_history.csv").open(encoding="utf-8") as file:
        return np.array([float(row[name] or "nan") for row in csv.DictReader(file)])


def smooth(values: np.ndarray) -> np.ndarray:
    """Means over `WINDOW` steps."""
    return np.convolve(values, np.ones(WINDOW) / WINDOW, mode="valid")


def draw(axes: Axes, runs: dict[str, Path], name: str, title: str) -> None:
    """One panel: every step faintly, and the means over a few."""
    for label, run in runs.items():
        values = column(run, name)
        steps = np.arange(1, len(values) + 1)
        (line,) = axes.plot(steps[WINDOW - 1 :], smooth(values), label=label)
        axes.plot(steps, values, color=line.get_color(), alpha=0.25, linewidth=0.7)
    axes.set_title(title)
    axes.set_xlabel("step")


def main() -> None:
    """Write the figure."""
    local, nemo_rl, target = map(Path, sys.argv[1:])
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(11, 3.2), layout="constrained")
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        draw(axes, {"local (TRL)": local, "NeMo-RL, rehearsal": nemo_rl}, name, title)
    panels[0].legend()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
