"""Checks a prompts.jsonl that was made or changed by hand, and writes its manifest.

    python -m data_prep.seal prompts.jsonl

`equipoise.data.data_path` takes the file then. docs/configuration.md describes a line of it.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data_prep.faults import DataError
from data_prep.records import read_unsealed, write_prompts


def main(arguments: Sequence[str] | None = None) -> None:
    """Check every line of a prompt file and write the file with its manifest."""
    parser = argparse.ArgumentParser(prog="python -m data_prep.seal", description=main.__doc__)
    parser.add_argument("file", type=Path, help="the prompts, one JSON object per line")
    path = parser.parse_args(arguments).file
    try:
        records = read_unsealed(path)
        write_prompts(path, records, {"sealed": "by hand"})
    except (DataError, OSError) as error:
        parser.error(str(error))
    splits = Counter(record.split for record in records)
    print(f"{path}: " + ", ".join(f"{n:,} {split}" for split, n in splits.items()))  # noqa: T201


if __name__ == "__main__":
    main()
