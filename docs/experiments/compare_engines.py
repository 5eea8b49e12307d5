"""Two runs of one configuration by different engines: their curves beside each other.

    python docs/experiments/compare_engines.py results/fairness/<local run> \
        results/fairness/<its rehearsal> docs/images/engines.svg
"""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from equipoise.errors import EquipoiseError
from equipoise.run.seals import UNSEALED, open_run, unsealed_note
from equipoise.terminal.options import UNSEALED_HELP

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("local", "nemo_rl", "target"):
        parser.add_argument(name, type=Path)
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    options = parser.parse_args()
    local, nemo_rl, target = options.local, options.nemo_rl, options.target
    try:
        opened = [open_run(run, unsealed=options.unsealed) for run in (local, nemo_rl)]
    except EquipoiseError as error:
        sys.exit(f"error: {error}")
    if accepted := [f"{each.run.root}/{part}" for each in opened for part in each.unsealed]:
        print(unsealed_note(accepted))
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(11, 3.2), layout="constrained")
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        draw(axes, {"local (TRL)": local, "NeMo-RL, rehearsal": nemo_rl}, name, title)
    panels[0].legend()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
