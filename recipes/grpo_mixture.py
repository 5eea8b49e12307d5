"""One policy for several tasks at once: fair, in scope, well read and well searched."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.__main__ import main

if __name__ == "__main__":
    main(["train", "mixture", *sys.argv[1:]], __doc__)
