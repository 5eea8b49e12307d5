"""Make what stands beside NeMo-RL's packages, for an image or a machine without a network."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.engines.nemo_rl.launch import prepare
from equipoise.terminal.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(prepare))
