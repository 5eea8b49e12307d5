"""Run a task's recipe for several seeds, and write what its figures are over the seeds.

    uv run docs/experiments/seeds.py dharma --seeds 101 102 103 104 105
    uv run docs/experiments/seeds.py rag --seeds 1 2 3 --split validation -- grpo.max_num_steps=40
    uv run docs/experiments/seeds.py --runs results/rag/first results/rag/second

Each run is the recipe in a process of its own with the local scale, and its seed is that of the
prompts and their split, of the local model, of training and of sampling. A model in the cache is
not used, so that the CPU seconds hold its warm start. A finished run is not repeated and one that
was stopped is resumed. Words after `--` go to the recipe; give such runs an --output of their own.
CPU seconds are told as multiples of a fixed piece of work on the same machine, too, see
`fixed_work`. The table goes to seeds.md and seeds.json in the output folder.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.files.errors import EquipoiseError
from equipoise.run.directory import RunDirectory
from equipoise.run.seals import open_run
from equipoise.statistics.intervals import Interval
from equipoise.statistics.seeds import OverSeeds, over_seeds

ROOT = Path(__file__).resolve().parents[2]
SECONDS = "cpu_seconds.txt"
#: Multiples of the fixed piece of work, timed before each part of a run.
WORK = "fixed_work.txt"
COLUMNS = (
    *("metric", "figure", "mean", "range", "interval over seeds", "another seed"),
    *("SD between seeds", "guard", "verdicts"),
)
#: What a run tells of a metric, and where that is in comparison.json or evaluation.json.
FIGURES = ("before", "after", "change", "removed_share")


def train(task: str, seed: int, options: argparse.Namespace) -> Path:
    """Run or resume the recipe unless it has been run; the folder of the run."""
    folder: Path = options.output / task / f"{options.split}-{seed}"
    if RunDirectory(folder).comparison.exists():
        return folder
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, str(ROOT / "recipes" / f"grpo_{task}.py")]
        if folder.exists():
            command += ["--resume", str(folder)]
        else:
            command += ["--config", str(options.config), "--seed", str(seed), "--no-wandb"]
            command += ["--run-name", folder.name, "--output-dir", str(options.output)]
            command += [f"equipoise.cache_dir={cache}", *options.extra]
            command += [f"equipoise.evaluation.split={options.split}"]
        unit, before = fixed_work(), cpu_seconds()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    used = cpu_seconds() - before
    for name, amount in ((SECONDS, used), (WORK, used / unit)):
        total = amount + float(text_of(folder / name) or 0)
        (folder / name).write_text(f"{total:.0f}\n")
    return folder


def fixed_work() -> float:
    """Do small matrix products and Python, as a run does, and return the CPU seconds.

    A run that takes 150 times as long here takes about 150 times as long elsewhere.
    """
    started = time.process_time()
    rng = np.random.default_rng(0)
    # So small that NumPy multiplies them in one thread.
    rows, weights = rng.standard_normal((64, 64)), rng.standard_normal((64, 64)) / 8
    counts: Counter[str] = Counter()
    for n in range(8_000):
        rows = np.tanh(rows @ weights) + rows / 2
        counts.update(f"{n % 100} {letter}" for letter in "equipoise" * 12)
    return time.process_time() - started


def cpu_seconds() -> float:
    """Return the CPU time of processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def text_of(path: Path) -> str:
    """A file's text; empty if there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def summary_of(runs: Sequence[RunDirectory]) -> dict[str, Any]:
    """The content of seeds.json."""
    compared = [read(run.comparison)["metrics"] for run in runs]
    evaluations = [[read(run.evaluation(s)) for s in ("baseline", "final")] for run in runs]
    confidence = evaluations[0][1]["confidence"]
    same_items = len({tested(run.rollouts("final")) for run in runs}) == 1
    metrics: dict[str, Any] = {}
    for name in compared[0]:
        rows = [comparison[name] for comparison in compared]
        estimates = [
            figures_of(row, *(stage["metrics"][name] for stage in stages))
            for row, stages in zip(rows, evaluations, strict=True)
        ]
        told = {f: over(estimates, f, confidence, same_items=same_items) for f in FIGURES}
        metrics[name] = {
            "figures": {figure: asdict(one) for figure, one in told.items() if one},
            "guards": [row.get("guard") for row in rows],
            "verdicts": [row["verdict"] for row in rows],
            "runs": estimates,
        }
    seconds, work = ([text_of(run.root / name).strip() for run in runs] for name in (SECONDS, WORK))
    return {
        "schema": 1,
        "confidence": confidence,
        "same_items": same_items,
        "runs": [str(run.root) for run in runs],
        "cpu_seconds": [float(told) if told else None for told in seconds],
        "fixed_work": [float(told) if told else None for told in work],
        "not_beaten": [read_modes(run).get("trivial", {}).get("not_beaten") for run in runs],
        "metrics": metrics,
    }


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_modes(run: RunDirectory) -> Any:
    """modes.json, if there is one."""
    return read(run.modes) if run.modes.exists() else {}


def tested(rollouts: Path) -> frozenset[str]:
    """The prompts that a run was judged on."""
    with rollouts.open(encoding="utf-8") as lines:
        return frozenset(json.loads(line)["prompt"] for line in lines)


def figures_of(
    row: Mapping[str, Any], first: Mapping[str, Any], last: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """The figures of one metric in one run, each with value, low and high."""
    stages = {"before": first, "after": last}
    change = {"value": row["difference"], "low": row["low"], "high": row["high"]}
    told = {**stages, "change": change, "removed_share": row.get("removed_share") or {}}
    return {
        name: {key: figure.get(key) for key in ("value", "low", "high")}
        for name, figure in told.items()
    }


def over(
    estimates: Sequence[Mapping[str, Mapping[str, Any]]],
    figure: str,
    confidence: float,
    *,
    same_items: bool,
) -> OverSeeds | None:
    """One figure over the runs; None where not every run has it."""
    ours = [estimate[figure] for estimate in estimates]
    if any(one["value"] is None or one["low"] is None or one["high"] is None for one in ours):
        return None
    return over_seeds(
        [one["value"] for one in ours],
        [Interval(one["low"], one["high"]) for one in ours],
        confidence=confidence,
        same_items=same_items,
    )


def table(summary: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    rule = "|".join(["---"] * len(COLUMNS))
    rows = (f"| {' | '.join(COLUMNS)} |", f"|{rule}|", *lines(summary))
    return "\n".join([heading(summary), "", trivial_line(summary["not_beaten"]), "", *rows, ""])


def heading(summary: Mapping[str, Any]) -> str:
    """How many runs there are, and what their intervals are of; one run has none over seeds."""
    runs = len(summary["runs"])
    seconds, work = (
        [f"{amount:.0f}" for amount in summary[key] if amount is not None]
        for key in ("cpu_seconds", "fixed_work")
    )
    if runs == 1:
        took = f", {seconds[0]} CPU seconds" if seconds else ""
        took += f" ({work[0]} times the fixed work)" if work else ""
        return f"1 run{took}. Intervals over seeds need more."
    items = "the same test items" if summary["same_items"] else "test items of its own each"
    took = (
        f"; {min(seconds, key=int)} to {max(seconds, key=int)} CPU seconds each" if seconds else ""
    )
    if work:
        took += f" ({min(work, key=int)} to {max(work, key=int)} times the fixed work)"
    return (
        f"{runs} runs, {items}{took}. Intervals are of {summary['confidence']:.0%}: over seeds, of "
        "the mean over all seeds; another seed, of one more run."
    )


def trivial_line(not_beaten: Sequence[Sequence[str] | None]) -> str:
    """In how many runs a trivial baseline has a reward that is not shown to be lower."""
    probed = [names for names in not_beaten if names is not None]
    if not probed:
        return "No run was probed for trivial baselines."
    told = counted([name for names in probed for name in names]) or "none"
    return f"Trivial baselines not beaten on the reward, by the number of runs: {told}."


def lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """A row for each figure of each metric; guards and verdicts stand beside the change."""
    for name, metric in summary["metrics"].items():
        for figure, told in metric["figures"].items():
            decided = figure == "change"
            cells = (
                *(name, figure, number(told["mean"])),
                f"{number(told['least'])} to {number(told['greatest'])}",
                *(interval(told[key]) for key in ("interval", "another")),
                number(told["between"]),
                counted(metric["guards"]) if decided else "",
                counted(metric["verdicts"]) if decided else "",
            )
            yield f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Three decimals, with a minus sign that is none of zero."""
    return "-" if value is None else re.sub(r"^-(0\.0*)$", r"\1", f"{value:.3f}")


def interval(ends: Mapping[str, float] | None) -> str:
    """Both ends."""
    return "-" if ends is None else f"{number(ends['low'])} to {number(ends['high'])}"


def counted(words: Sequence[str | None]) -> str:
    """How many runs have each word."""
    return ", ".join(f"{word} {count}" for word, count in Counter(filter(None, words)).items())


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("task", nargs="?", help="as in recipes/grpo_<task>.py")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="DIR", help="finished runs instead")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--config", type=Path, default=ROOT / "nemo_configs" / "local.yaml")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "seeds")
    parser.add_argument("--extra", nargs="*", default=[], help=argparse.SUPPRESS)
    own = list(sys.argv[1:] if arguments is None else arguments)
    at = own.index("--") if "--" in own else len(own)
    options = parser.parse_args(own[:at])
    options.extra = own[at + 1 :]
    if bool(options.runs) == bool(options.task and options.seeds):
        parser.error("name a task with --seeds, or finished runs with --runs")
    if options.task and not (ROOT / "recipes" / f"grpo_{options.task}.py").is_file():
        parser.error(f"there is no recipes/grpo_{options.task}.py")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, then write and print the table."""
    options = parse_options(arguments)
    folders = options.runs or [train(options.task, s, options) for s in options.seeds]
    if missing := [str(f) for f in folders if not RunDirectory(f).comparison.exists()]:
        sys.exit(f"no finished run (no comparison.json): {', '.join(missing)}")
    try:
        runs = [open_run(folder) for folder in folders]
    except EquipoiseError as error:
        sys.exit(f"error: {error}")
    summary = summary_of(runs)
    target = options.output / options.task if options.task else options.output
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=1, allow_nan=False)
    (target / "seeds.json").write_text(text + "\n", encoding="utf-8")
    (target / "seeds.md").write_text(table(summary), encoding="utf-8")
    print(table(summary))


if __name__ == "__main__":
    main()
