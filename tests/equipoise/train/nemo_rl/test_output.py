"""NeMo-RL's output goes into a file, the run's own to the user."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from equipoise.terminal.console import Reporter
from equipoise.train.nemo_rl.engine import output_to

reporter, log = Reporter(), Path(sys.argv[1])
try:
    with output_to(log, reporter):
        print("python")
        os.write(2, b"native\\n")
        subprocess.run([sys.executable, "-c", "print('a worker')"], check=True)
        reporter.say("for the user")
        raise RuntimeError("mine")
except RuntimeError as error:
    print(error)
reporter.say("here again")
with output_to(log, reporter):
    print("once more")
"""

FOREIGN = r"""
import logging, os, sys
from pathlib import Path
from equipoise.terminal.console import Reporter
from equipoise.train.nemo_rl.engine import output_to

with output_to(Path(sys.argv[1]), Reporter()):
    print("\x1b[36ma worker\x1b[0m: \x1b]52;c;eA==\x07 \ud800")
    print("half\rall", file=sys.stderr)
    logging.basicConfig()
    logging.warning("of a logger \x1b[2J")
logging.warning("after it \x1b[2J")
"""


def test_completions_that_nemo_rl_prints_do_nothing_to_whoever_reads_the_file(tmp_path):
    command = [sys.executable, "-c", FOREIGN, str(tmp_path / "log")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (tmp_path / "log").read_text().splitlines() == [
        r"a worker: \x1b]52;c;eA==\x07 \ud800",
        *("half", "all"),
        r"WARNING:root:of a logger \x1b[2J",
        r"WARNING:root:after it \x1b[2J",
    ]
    assert result.stderr == ""


def test_prints_of_this_process_and_of_others_go_to_the_file(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["for the user", "mine", "here again"]
    assert result.stderr == ""
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == ["a worker", "native", "once more", "python"]
