"""In place of a recipe, with what grpo.sbatch knows of one: its words, its directory, its codes.

It keeps a checkpoint every second, ends with 130 and a checkpoint after SIGINT, and goes on with
--resume. As training does, it needs a process that it has started, and fails without it. What it
was started with is in its directory.

    recipe.py [--steps N] [--exit CODE] [--converts SECONDS] ...

It first converts its model, unless an earlier start has: nothing is kept of that, and no signal
ends it.
"""

import argparse
import atexit
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STOPPED = 130


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--converts", type=int, default=0)
    parser.add_argument("--run-name")
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_intermixed_args()
    run = options.resume or options.output_dir / "task" / options.run_name
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    if options.resume is None:
        words = vars(options) | {"output_dir": str(options.output_dir)}
        (run / "provenance.json").write_text(json.dumps(words))
    options = argparse.Namespace(**json.loads((run / "provenance.json").read_text()))
    with (run / "starts.jsonl").open("a") as file:
        started = {"words": sys.argv[1:], "node": os.environ["SLURMD_NODENAME"]}
        file.write(json.dumps(started | {"ray": os.environ["RAY_ADDRESS"]}) + "\n")
    stopped = []
    signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    converted = Path(os.environ["NRL_MEGATRON_CHECKPOINT_DIR"]) / "converted"
    if options.converts and not converted.exists():
        ends = time.monotonic() + options.converts
        while time.monotonic() < ends:
            time.sleep(0.1)
        converted.touch()
    child = subprocess.Popen(["sleep", "600"])
    atexit.register(child.kill)
    done = len(list((run / "checkpoints").iterdir()))
    for step in range(done + 1, options.steps + 1):
        time.sleep(1)
        (run / "checkpoints" / f"step_{step}").touch()
        if child.poll() is not None:
            return 1
        if stopped:
            return STOPPED
    return options.exit


if __name__ == "__main__":
    sys.exit(main())
