"""Put examples onto the documentation's site: reports of finished runs, and a comparison.

    uv run docs/examples.py results/fairness/RUN results/dharma/RUN
    uv run --group docs sphinx-build -W -c docs . site

The comparison is that of the first run's frozen and trained model. All of it goes to `examples` in
the folder of the site; a page lists what is there when the site is built.
"""

import argparse
import shutil
import sys
from pathlib import Path

from equipoise.__main__ import main as equipoise


def main() -> None:
    """Copy the reports, and compare; leaves with the comparison's status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--site", type=Path, default=Path("site"), metavar="DIR")
    options = parser.parse_args()
    runs = [run.resolve() for run in options.runs]
    for run in runs:
        if not (run / "report.html").is_file():
            sys.exit(f"error: {run} is not the folder of a finished run")
    examples = options.site / "examples"
    shutil.rmtree(examples, ignore_errors=True)
    examples.mkdir(parents=True)
    for run in runs:
        shutil.copyfile(run / "report.html", examples / f"{run.parent.name}-{run.name}.html")
    stages = [str(runs[0] / stage) for stage in ("baseline", "final")]
    equipoise(["compare", *stages, "--output-dir", str(examples / "compare")])


if __name__ == "__main__":
    main()
