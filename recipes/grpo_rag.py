"""Train a rewriter to search for what a frozen generator needs to answer a question."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.cli import main

if __name__ == "__main__":
    main("rag", __doc__)
