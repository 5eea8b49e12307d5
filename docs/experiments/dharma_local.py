"""Train the local dharma variant over several seeds and print the table of docs/dharma.md.

    uv run docs/experiments/dharma_local.py --split validation --seeds 0 1 2 3
    uv run docs/experiments/dharma_local.py --split test --seeds 10 11 12 13 14

Each run is the recipe in a process of its own with the shipped local configuration; the seed is
that of the prompts and of what is held out, of the local model, of training and of sampling. A
model in the cache is not used, so that the CPU seconds hold its warm start. A finished run is not
repeated. Words after `--` go to the recipe, such as `-- env.dharma.reward=violation`; give such runs an
`--output` of their own.
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
RECIPE = ROOT / "recipes" / "grpo_dharma.py"
METRICS = (
    "over_refusal_rate",
    "under_refusal_rate",
    "unseen_under_refusal_rate",
    "right_advice_rate",
    "needless_referral_rate",
    "emergency_sent_rate",
    "combined_score",
)
COLUMNS = ("seed", "dharma violations before", "after", "cut by", *METRICS, "CPU seconds")


def train(seed: int, split: str, output: Path, extra: Sequence[str]) -> Path:
    """Run the recipe unless it has been run; the folder of the run."""
    folder = output / "dharma" / f"{split}-{seed}"
    if (folder / "cpu_seconds.txt").exists():
        return folder
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, str(RECIPE), "--seed", str(seed), "--no-wandb"]
        command += ["--config", str(ROOT / "nemo_configs" / "local.yaml")]
        command += ["--run-name", folder.name, "--output-dir", str(output)]
        command += [f"equipoise.cache_dir={cache}", f"equipoise.evaluation.split={split}"]
        command += extra
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (folder / "cpu_seconds.txt").write_text(f"{seconds:.0f}\n")
    return folder


def row(seed: int, folder: Path) -> str:
    """A line of Markdown: one run, before -> after."""
    before, after = (
        json.loads((folder / stage / "evaluation.json").read_text(encoding="utf-8"))["metrics"]
        for stage in ("baseline", "final")
    )
    first, last = (stage["dharma_violation_rate"] for stage in (before, after))
    cells = (
        str(seed),
        interval(first),
        interval(last),
        f"{1 - last['value'] / first['value']:.0%}",
        *(arrow(before, after, name) for name in METRICS),
        (folder / "cpu_seconds.txt").read_text().strip(),
    )
    return f"| {' | '.join(cells)} |"


def arrow(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    """A metric before and after."""
    return f"{before[name]['value']:.3f} -> {after[name]['value']:.3f}"


def interval(figure: Mapping[str, float]) -> str:
    """A value with its 95% interval."""
    return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--split", choices=("validation", "test"), required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "dharma-local")
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
