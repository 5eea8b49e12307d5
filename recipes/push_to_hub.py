"""Put a run's model, with its model card, on the Hugging Face hub: private, or --public."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.push import parse_options, run
from equipoise.terminal.exits import guarded

if __name__ == "__main__":
    options = parse_options()
    sys.exit(guarded(lambda reporter: run(options, reporter)))
