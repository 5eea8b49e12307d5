"""Train a rewriter to search for what a frozen generator needs to answer a question."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.__main__ import main

if __name__ == "__main__":
    main(["train", "rag", *sys.argv[1:]], __doc__)
