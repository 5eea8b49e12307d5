"""Make the examples of the documentation's site from finished runs.

    uv run docs/examples.py results/fairness/RUN results/dharma/RUN
    uv run --group docs sphinx-build -W -c docs . site

An example is the report of a run, or the first run's frozen and trained model compared. Everything
goes to `examples` in the folder of the site, with the command of each example but without this
machine's folders.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

#: The folders before a file, or before those of the project.
MACHINE_FOLDERS = re.compile(r"(^|=|,)/[^,]*?((?:recipes|nemo_configs)/[^,]*|[^/,]*)(?=,|$)")
#: What a page of the site shows without a break.
LINE_LENGTH = 72
Example = dict[str, str]


def main() -> None:
    """Make all examples, or leave with the status of the first command that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--site", type=Path, default=Path("site"), metavar="DIR")
    options = parser.parse_args()
    for run in options.runs:
        if not (run / "report.html").is_file():
            sys.exit(f"error: {run} is not the folder of a finished run")
    folder = options.site / "examples"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    examples = list(run_examples(options.runs, folder))
    (folder / "examples.json").write_text(json.dumps(examples), "utf-8")
    print(f"examples: {folder}")


def run_examples(runs: Sequence[Path], folder: Path) -> Iterator[Example]:
    """Copy the reports, and compare the frozen and the trained model of the first run."""
    records = [json.loads((run / "provenance.json").read_text("utf-8")) for run in runs]
    for run, record in zip(runs, records, strict=True):
        page = f"{record['task']}-{record['run_name']}.html"
        shutil.copyfile(run / "report.html", folder / page)
        yield example(f"Report: {record['task']}", f"examples/{page}", training_words(record))
    for run, record in zip(runs[:1], records, strict=False):
        start("-m", "equipoise", "compare", *stages(run), f"--output-dir={folder / 'compare'}")
        words = stages(Path("results", record["task"], record["run_name"]))
        title = f"Before and after training: {record['task']}"
        words = ["equipoise", "compare", *words]
        yield example(title, "examples/compare/compare.html", words)


def stages(run: Path) -> list[str]:
    """Return the folders of the frozen and of the trained model."""
    return [str(run / "baseline"), str(run / "final")]


def training_words(record: dict[str, Any]) -> Iterator[str]:
    """Yield what started a run, without where it wrote."""
    words = iter(record["command"][1:])
    for word in words:
        if word == "--output-dir":
            next(words)
        elif not word.startswith(("--output-dir=", "equipoise.cache_dir=")):
            yield word


def start(*words: str) -> None:
    """Run Python; leave if it fails, which it has explained."""
    result = subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=False)
    if result.returncode:
        sys.exit(result.returncode)


def example(title: str, page: str, words: Iterable[str]) -> Example:
    """Return an entry of the list of examples."""
    parts = ["uv run"]
    for word in words:
        shown = shlex.quote(MACHINE_FOLDERS.sub(r"\1\2", word))
        if re.fullmatch(r"--[\w-]+", parts[-1]) and not word.startswith("--"):
            parts[-1] += f" {shown}"  # a line does not end between an option and its value
        else:
            parts.append(shown)
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > LINE_LENGTH:
            lines.append("   ")
        lines[-1] += f" {part}"
    return {"title": title, "page": page, "command": " \\\n".join(lines).strip()}


if __name__ == "__main__":
    main()
