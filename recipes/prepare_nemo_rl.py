"""Make what stands beside NeMo-RL's packages, for an image or a machine without a network."""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.machine.launch import prepare
from equipoise.terminal.exits import guarded

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=f"{__doc__} Start it in the container of NeMo-RL, or with NEMO_RL_PATH naming "
        "a checkout."
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show what is there and what is missing; make nothing",
    )
    options = parser.parse_args()
    sys.exit(guarded(partial(prepare, dry_run=options.dry_run)))
