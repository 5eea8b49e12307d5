"""Train a health assistant to stay within healthcare, rated by a judge and decided by a policy."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.__main__ import main

if __name__ == "__main__":
    main(["train", "dharma", *sys.argv[1:]], __doc__)
