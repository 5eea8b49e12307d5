"""The table of an audit in docs/audit.md, from what `equipoise evaluate` has written.

    uv run docs/experiments/audit_table.py results/audits/NAME/TASK ... --metric TASK=NAME,NAME

Prints Markdown: a row for each metric, a column for each way of asking, each figure with its 95%
interval, and the verdict of the comparison with the first way.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.run.kept_files import UNSEALED, open_run, unsealed_note
from equipoise.terminal.options import UNSEALED_HELP

Json = Mapping[str, Any]


def table(
    folders: Sequence[Path], wanted: Mapping[str, Sequence[str]], *, unsealed: bool = False
) -> Iterator[str]:
    """The metrics of each folder, line by line; the ways are those of the first."""
    compared = [_read(folder / "compare.json") for folder in folders]
    ways = [entry["name"] for entry in compared[0]["entries"]]
    head = ["task", "prompts, replies", "metric", *ways]
    yield _line(head)
    yield _line(["---"] * len(head))
    accepted: list[str] = []
    for folder, comparison in zip(folders, compared, strict=True):
        opened = [open_run(folder / way, unsealed=unsealed) for way in ways]
        accepted += [f"{each.run.root}/{part}" for each in opened for part in each.unsealed]
        stages = [_read(each.run.evaluation("baseline")) for each in opened]
        size = f"{stages[0]['n_prompts']}, {stages[0]['n_rollouts']}"
        for metric in wanted[folder.name]:
            figures = [_figure(stage["metrics"][metric]) for stage in stages]
            verdicts = [each["metrics"].get(metric, {}) for each in comparison["comparisons"]]
            told = [
                f"{figure}{_verdict(one)}"
                for figure, one in zip(figures[1:], verdicts, strict=True)
            ]
            label = stages[0]["presentation"]["words"].get(metric, {}).get("label", metric)
            yield _line([folder.name, size, label, figures[0], *told])
    if accepted:
        yield f"\n{unsealed_note(accepted)}"


def _figure(metric: Json) -> str:
    if metric["value"] is None:
        return "not defined"
    if metric["low"] is None:
        return f"{metric['value']:.3f}"
    return f"{metric['value']:.3f} ({metric['low']:.3f} to {metric['high']:.3f})"


def _verdict(metric: Json) -> str:
    return f", {metric['verdict']}" if metric.get("verdict") else ""


def _read(path: Path) -> Json:
    content: Json = json.loads(path.read_text(encoding="utf-8"))
    return content


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="results/audits/NAME/TASK")
    parser.add_argument("--metric", action="append", required=True, metavar="TASK=NAME,NAME")
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    given = parser.parse_args()
    wanted = {task: names.split(",") for task, _, names in (w.partition("=") for w in given.metric)}
    try:
        print("\n".join(table(given.folders, wanted, unsealed=given.unsealed)))
    except EquipoiseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
