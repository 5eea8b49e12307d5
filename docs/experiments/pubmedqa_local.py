"""Train the local PubMedQA variant over several seeds and print the table of docs/pubmedqa.md.

    uv run docs/experiments/pubmedqa_local.py --split validation --seeds 1 2 3
    uv run docs/experiments/pubmedqa_local.py --split test --seeds 101 102 103 104 105

Each run is the recipe in a process of its own with the shipped local configuration; the seed is
that of the abstracts and their split, of the local model, of training and of sampling. A model in
the cache is not used, so that the CPU seconds hold its warm start. A finished run is not repeated.
The best trivial policy is the one of the run's own probe with the highest accuracy. Words after
`--` go to the recipe, such as `-- env.pubmedqa.grounding_weight=0`; give such runs an `--output` of
their own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "grpo_pubmedqa.py"
#: Figures of the reasons, before -> after.
REASONS = ("grounded_rate", "false_quote_rate", "false_number_rate", "decisive_quote_rate")
COLUMNS = (
    "seed",
    "accuracy before",
    "after",
    "change",
    "p (McNemar)",
    "best trivial policy",
    "macro-F1",
    "recall yes / no / maybe",
    "format",
    *REASONS,
    "CPU seconds",
    "MB",
)


def train(seed: int, split: str, output: Path, extra: Sequence[str]) -> Path:
    """Run the recipe unless it has been run; the folder of the run."""
    folder = output / "pubmedqa" / f"{split}-{seed}"
    if (folder / "cost.txt").exists():
        return folder
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, str(RECIPE), "--seed", str(seed), "--no-wandb"]
        command += ["--run-name", folder.name, "--output-dir", str(output)]
        command += [f"equipoise.cache_dir={cache}", f"equipoise.evaluation.split={split}"]
        command += extra
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (folder / "cost.txt").write_text(f"{seconds:.0f} {after.ru_maxrss / 1024:.0f}\n")
    return folder


def row(seed: int, folder: Path) -> str:
    """A line of Markdown: one run, before -> after."""
    before, after = (read(folder / stage / "evaluation.json") for stage in ("baseline", "final"))
    change = read(folder / "comparison.json")["metrics"]["accuracy"]
    metrics = [found["metrics"] for found in (before, after)]
    recalls = [
        " / ".join(f"{figures['recall']['value']:.2f}" for figures in found["by_class"].values())
        for found in (before, after)
    ]
    cells = (
        str(seed),
        *(interval(found["accuracy"]) for found in metrics),
        interval({**change, "value": change["difference"]}),
        f"{change['p']:.0e}",
        best_trivial(folder),
        arrow(metrics, "macro_f1"),
        " -> ".join(recalls),
        arrow(metrics, "format_rate"),
        *(arrow(metrics, name) for name in REASONS),
        *(folder / "cost.txt").read_text().split(),
    )
    return f"| {' | '.join(cells)} |"


def best_trivial(folder: Path) -> str:
    """The policy without skill that has the highest accuracy, and that accuracy."""
    policies = read(folder / "probe" / "probe.json")["policies"]
    accuracies = {
        name: policy["metrics"]["accuracy"]["value"]
        for name, policy in policies.items()
        if name != "untrained"
    }
    best = max(accuracies, key=lambda name: accuracies[name])
    return f"{best} {accuracies[best]:.3f}"


def arrow(metrics: list[Mapping[str, Any]], name: str) -> str:
    """A metric before and after."""
    return " -> ".join(f"{found[name]['value']:.3f}" for found in metrics)


def interval(figure: Mapping[str, float]) -> str:
    """A value with its 95% interval."""
    return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--split", choices=("validation", "test"), required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "pubmedqa-local")
    parser.add_argument("extra", nargs="*", help="words for the recipe, after --")
    options = parser.parse_args()
    folders = {
        seed: train(seed, options.split, options.output, options.extra) for seed in options.seeds
    }
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for seed, folder in folders.items():
        print(row(seed, folder))


if __name__ == "__main__":
    main()
