"""Make the examples of the documentation's site, from finished runs and published answers.

    uv run docs/examples.py results/fairness/RUN results/dharma/RUN --answers medperturb data.csv
    uv run --group docs sphinx-build -W -c docs . site

The report of each run, before against after over all runs of the first one's task, an audit for
each `--answers`, and a leaderboard of these. All of it goes to `examples` in the folder of the site
(`--site`), with a page that has the command of each.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPARE, AUDIT = "recipes/compare.py", "recipes/audit.py"
PUBLISHED = "docs/experiments/published_answers.py"
PAGE = """\
# Examples

Each was made by the command beside it; `uv run docs/examples.py` made them together. The local
models are tiny and invented: their figures say nothing of any clinical model.
"""
LEADERBOARD = """\
Published answers of models to counterfactual variants, in points of a hundred. A model's rank is
how far apart two variants may be at most, by the 95% intervals of all its comparisons. The order
is no test: neighbours are not shown to differ. [Audit](../audit.md) says what such answers show.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    folder: Path
    provenance: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> "Run":
        """Read it; leaves with a line where it is none, or not finished."""
        if not (folder / "report.html").is_file() or not (folder / "comparison.json").is_file():
            sys.exit(f"error: {folder} is not the folder of a finished run")
        return cls(folder, json.loads((folder / "provenance.json").read_text("utf-8")))

    @property
    def task(self) -> str:
        """Its task."""
        return str(self.provenance["task"])

    @property
    def usual_folder(self) -> str:
        """Where it is unless it is told otherwise."""
        return f"results/{self.task}/{self.provenance['run_name']}"

    @property
    def command(self) -> str:
        """What started it, without where it was and where it wrote."""
        words = iter(self.provenance["command"][1:])
        kept = []
        for word in words:
            if word in ("--output-dir", "--run-name"):
                next(words, None)
            elif not word.startswith("equipoise.cache_dir="):
                kept.append(within_project(word))
        return shlex.join(["uv", "run", *kept])


def within_project(word: str) -> str:
    """Return a path into a checkout from its first folder on."""
    for folder in ("recipes/", "nemo_configs/"):
        if f"/{folder}" in word:
            return folder + word.rpartition(f"/{folder}")[2]
    return word


def make_examples(runs: Sequence[Run], answers: Sequence[Sequence[str]], to: Path) -> Iterator[str]:
    """Make all of them; yields the page that lists them."""
    yield PAGE
    for run in runs:
        page = f"{run.task}-{run.provenance['run_name']}.html"
        shutil.copyfile(run.folder / "report.html", to / page)
        yield entry(f"Report: {run.task}", page, run.command)
    alike = [run for run in runs if run.task == runs[0].task]
    if alike:
        start(COMPARE, *stages([str(run.folder) for run in alike]), "--output", str(to / "compare"))
        command = shlex.join(["uv", "run", COMPARE, *stages([run.usual_folder for run in alike])])
        yield entry(f"Comparison: {alike[0].task}", "compare/compare.html", command)
    for source, *files in answers:
        start(AUDIT, source, *files, "--output", str(to / source))
        command = shlex.join(["uv", "run", AUDIT, source, *map(file_names, files)])
        yield entry(f"Audit: {source}", f"{source}/audit.html", command)
    if answers:
        audits = [f"{source}/audit.json" for source, *_ in answers]
        shown = [PUBLISHED, *(f"results/answers/{audit}" for audit in audits), "--leaderboard"]
        command = shlex.join(["uv", "run", *shown])
        yield f"## Leaderboard\n\n{LEADERBOARD}\n```bash\n{command}\n```\n"
        yield start(PUBLISHED, *(str(to / audit) for audit in audits), "--leaderboard")


def stages(folders: Sequence[str]) -> list[str]:
    """Return the two entries of a comparison over seeds."""
    both = (("before", "baseline"), ("after", "final"))
    return [f"{name}={','.join(f'{folder}/{stage}' for folder in folders)}" for name, stage in both]


def file_names(word: str) -> str:
    """Return `NAME=FILE,SECOND` without the folders."""
    name, equals, files = word.rpartition("=")
    return name + equals + ",".join(Path(file).name for file in files.split(","))


def entry(title: str, page: str, command: str) -> str:
    """Return a section with a link, as seen from the page of examples, and a command."""
    link = f'<a href="../../examples/{page}">{page}</a>'
    return f"## {title}\n\n{link}\n\n```bash\n{command}\n```\n"


def start(script: str, *words: str) -> str:
    """Run a command of the project and return what it prints."""
    command = [sys.executable, str(ROOT / script), *words]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:  # it has said why
        sys.exit(result.returncode)
    return result.stdout


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument(
        "--answers", nargs="+", action="append", default=[], metavar=("SOURCE", "FILE")
    )
    parser.add_argument("--site", type=Path, default=Path("site"), metavar="DIR")
    options = parser.parse_args()
    if not options.runs and not options.answers:
        parser.error("name a RUN or --answers")
    to = options.site / "examples"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    page = "\n".join(make_examples([Run.of(run) for run in options.runs], options.answers, to))
    (to / "examples.md").write_text(page, "utf-8")
    print(f"examples: {to}")


if __name__ == "__main__":
    main()
