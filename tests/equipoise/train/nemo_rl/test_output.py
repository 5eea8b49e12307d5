"""NeMo-RL's output goes into a file, the run's own to the user."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = r"""
import logging, os, subprocess, sys
from pathlib import Path
from equipoise.files.console import Reporter
from equipoise.train.nemo_rl.engine import output_to

reporter, log = Reporter(), Path(sys.argv[1])
try:
    with output_to(log, reporter):
        print("\x1b[36mpython\x1b[0m: \x1b]52;c;eA==\x07 \ud800")
        print("half\rall", file=sys.stderr)
        os.write(2, b"native\n")
        subprocess.run([sys.executable, "-c", "print('a worker')"], check=True)
        logging.basicConfig()
        logging.warning("of a logger \x1b[2J")
        reporter.say("for the user")
        raise RuntimeError("mine")
except RuntimeError as error:
    print(error)
reporter.say("here again")
logging.warning("after it \x1b[2J")
with output_to(log, reporter):
    print("once more")
"""


def test_prints_of_all_processes_go_to_the_file_and_do_nothing_to_whoever_reads_it(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["for the user", "mine", "here again"]
    assert result.stderr == ""
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(
        [
            r"python: \x1b]52;c;eA==\x07 \ud800",
            *("half", "all", "native", "a worker"),
            r"WARNING:root:of a logger \x1b[2J",
            r"WARNING:root:after it \x1b[2J",
            "once more",
        ]
    )
