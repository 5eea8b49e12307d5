"""Write the file of one version of NeMo-RL: `python -m equipoise.config.nemo_rl CHECKOUT FILE`."""

import argparse
import json
from pathlib import Path

from equipoise.config.nemo_rl.checkout import read_keys


def main() -> None:
    """Read the checkout that the command line names, and write its keys."""
    parser = argparse.ArgumentParser(
        description="Write down which keys a version of NeMo-RL has, and what type each takes."
    )
    parser.add_argument("checkout", type=Path, help="a checkout of NVIDIA-NeMo/RL at that version")
    parser.add_argument("file", type=Path, help="equipoise/config/nemo_rl/<version>.json")
    options = parser.parse_args()
    keys = read_keys(options.checkout)
    options.file.write_text(json.dumps(keys, indent=0) + "\n", encoding="utf-8")
    print(f"{options.file}: {len(keys)} keys")  # noqa: T201  a command's result


if __name__ == "__main__":
    main()
