"""How fast published answers are audited. Run with `pytest -n 0 -s tests/benchmarks`."""

import time
from pathlib import Path

import numpy as np

from equipoise.evaluate.answers_command import AnswersOptions, run
from equipoise.evaluate.answers_report import answers_page  # noqa: F401  imported before it is timed
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import read_options
from tests.data_prep.answers.published import FIELDS, amqa_line, write_amqa

ROWS, MOST_SECONDS = 801, 3.0


def test_a_file_of_801_questions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        amqa_line(f"{n}", **dict(zip(FIELDS, rng.choice(list("AAAAB"), 8).tolist(), strict=True)))
        for n in range(ROWS)
    ]
    path = write_amqa(tmp_path / "AMQA_Benchmark_Answer_x.jsonl", lines)
    started = time.perf_counter()
    words = ["amqa", str(path), "--output-dir", str(tmp_path)]
    run(read_options(AnswersOptions, words), Reporter())
    seconds = time.perf_counter() - started
    print(f"{ROWS} questions in 8 variants: {seconds:.2f} s")
    assert seconds < MOST_SECONDS
