"""Put defects that were mended back, one at a time; each must fail a test.

    uv run --no-sync tests/mutations.py [WORD ...]

Everything happens in copies of the tree and without NeMo-RL. What is put back stands in mended.py.
WORDs choose the entries whose defect has one of them. Leaves with 1 where a defect passes its
tests, and with 2 where an entry no longer fits the code or none was chosen.
"""

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.mended import MENDED, Mended

ROOT = Path(__file__).resolve().parents[1]
_SECONDS = 900  # for the tests of one entry
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
#: pytest's exit codes that are an answer: all passed, some failed.
_ANSWERS = (0, 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said; `caught_by` is empty where all passed."""

    caught_by: tuple[str, ...]
    trouble: str = ""  # why they said nothing


def main(words: Sequence[str], root: Path = ROOT, mended: Sequence[Mended] = MENDED) -> int:
    """Run, print the table, and return the exit code."""
    chosen = [one for one in mended if not words or any(word in one.defect for word in words)]
    if not chosen:
        print(f"error: no entry has {' or '.join(words)}", file=sys.stderr)
        return 2
    if moved := [said for one in chosen if (said := no_longer_fits(one, root))]:
        print("\n".join(moved), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        unharmed, *outcomes = run_all([None, *chosen], root, Path(folder))
    print("\n".join(table(list(zip(chosen, outcomes, strict=True)))))
    survivors = sum(not outcome.caught_by for outcome in outcomes)
    print(f"\n{len(chosen)} defects put back, {len(chosen) - survivors} caught")
    if why := unharmed.trouble or ", ".join(unharmed.caught_by):
        print(f"error: without any defect the tests fail already: {why}", file=sys.stderr)
    return 1 if survivors or why else 0


def no_longer_fits(one: Mended, root: Path) -> str:
    """What is wrong with an entry; empty where its text is in its file exactly once."""
    path = root / one.file
    found = path.read_text(encoding="utf-8").count(one.text) if path.is_file() else 0
    if found == 1:
        return ""
    return (
        f"error: {one.file} has the text of {one.defect!r} {found} times: the code moved: mend "
        "this entry of tests/mended.py"
    )


def run_all(entries: Sequence[Mended | None], root: Path, folder: Path) -> list[Outcome]:
    """The outcome of each entry, and of all their tests without a defect for None.

    As many run at once as there are processors, each in a copy of its own.
    """
    every = sorted({test for one in entries if one for test in one.tests})
    copies: queue.Queue[Path] = queue.Queue()
    for number in range(min(os.cpu_count() or 1, len(entries))):
        copies.put(copied(root, folder / str(number)))

    def run(one: Mended | None) -> Outcome:
        copy = copies.get()
        try:
            if one is None:
                return run_tests(copy, every)
            with defect_in(copy, one):
                return run_tests(copy, one.tests)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(copies.qsize()) as pool:
        return list(pool.map(run, entries))


def copied(root: Path, copy: Path) -> Path:
    """The files that git has or would take."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, output.split("\0")):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    return copy


@contextmanager
def defect_in(copy: Path, one: Mended) -> Iterator[None]:
    """Inside, the copy has the defect."""
    path = copy / one.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(one.text, one.defective), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def run_tests(copy: Path, tests: Iterable[str]) -> Outcome:
    """Run them on the copy's code, up to the first that fails."""
    own = {n: value for n, value in os.environ.items() if not n.startswith(("NEMO_RL_", "PYTEST"))}
    # Before the path of the editable installation, which leads to the tree that was copied.
    environment = own | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    options = ("-n0", "-x", "-q", "--tb=line", "-rf")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome((), f"no answer within {_SECONDS} seconds")
    caught_by = tuple(_FAILED.findall(done.stdout))
    if done.returncode not in _ANSWERS or bool(done.returncode) != bool(caught_by):
        return Outcome((), f"pytest left with {done.returncode}: {done.stdout[-1000:]}")
    return Outcome(caught_by)


def table(rows: Sequence[tuple[Mended, Outcome]]) -> Iterator[str]:
    """Markdown."""
    yield "| defect | file | tests | caught by |"
    yield "| --- | --- | --- | --- |"
    for one, outcome in rows:
        caught = ", ".join(_name(test) for test in outcome.caught_by)
        verdict = caught or outcome.trouble.replace("\n", " ") or "NOTHING"
        tests = ", ".join(one.tests)
        yield f"| {one.defect} | {one.file} | {tests} | {verdict} |"


def _name(test: str) -> str:
    return test.rpartition("::")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
