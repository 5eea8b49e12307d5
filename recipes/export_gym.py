"""Serve a task's rewards from NeMo Gym: the folder that it starts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.gym.export_command import parse_options, run
from equipoise.terminal.exits import guarded

if __name__ == "__main__":
    options = parse_options()
    sys.exit(guarded(lambda reporter: run(options, reporter)))
