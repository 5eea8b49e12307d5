"""Name what would keep a run from working, before it costs GPU time."""

import os
import sys
from pathlib import Path

if "--offline" in sys.argv:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # which is read when the Hub's client is imported
if sys.version_info < (3, 11):  # noqa: UP036  whoever starts it may have an older one
    sys.exit(
        f"error: this is Python {sys.version.split()[0]}, and Equipoise needs 3.11\n"
        "Start it with `uv run recipes/doctor.py`, which brings one."
    )
sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

try:
    from equipoise.doctor.command import parse_options, run
except ModuleNotFoundError as error:
    sys.exit(
        f"error: this Python has no {error.name}\n"
        "Start it with `uv run recipes/doctor.py`, which installs what is needed."
    )
from equipoise.terminal.exits import guarded

if __name__ == "__main__":
    options = parse_options()
    sys.exit(guarded(lambda reporter: run(options, reporter)))
