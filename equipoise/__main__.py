"""The command `equipoise`, in any Python."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  the Python that starts it may be older
    sys.exit(
        f"error: this is Python {sys.version.split()[0]}, and Equipoise needs 3.11\n"
        "Start it with `uv run`, which brings one."
    )

from equipoise.commands.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
