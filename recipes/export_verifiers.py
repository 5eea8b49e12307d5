"""Train on a task's rewards with prime-rl: the package that verifiers takes by its name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.terminal.exits import guarded
from equipoise.verifiers.export_command import parse_options, run

if __name__ == "__main__":
    options = parse_options()
    sys.exit(guarded(lambda reporter: run(options, reporter)))
