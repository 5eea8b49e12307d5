"""Write prompts.jsonl and its manifest from the command line."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from data_prep.pubmedqa import PromptSettings, build_prompts
from data_prep.records import write_prompts


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the prompts that the options ask for; wrong ones end the program with code 2."""
    parser = _parser()
    parsed = vars(parser.parse_args(arguments))
    given = {key: value for key, value in parsed.items() if value is not None}
    folder: Path = given.pop("output")
    try:
        settings = PromptSettings(**given)
        records = build_prompts(settings)
    except ValidationError as error:
        first = error.errors()[0]
        parser.error(": ".join([*map(str, first["loc"]), first["msg"]]))
    except ValueError as error:
        parser.error(str(error))
    folder.mkdir(parents=True, exist_ok=True)
    about = {"module": "data_prep.pubmedqa", "settings": settings.model_dump()}
    write_prompts(folder / "prompts.jsonl", records, about)
    counts = Counter(record.split for record in records)
    listed = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    print(f"{folder / 'prompts.jsonl'}: {listed}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_prep.pubmedqa", description=main.__doc__)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to write to"
    )
    parser.add_argument("--source", choices=("hub", "file", "synthetic"), help="default: hub")
    parser.add_argument("--path", metavar="FILE", help="of --source file")
    parser.add_argument("--split", choices=("published", "random"), help="default: published")
    parser.add_argument("--classes", type=int, choices=(2, 3), help="default: 3")
    parser.add_argument("--num-samples", type=int, metavar="N", help="questions; default: all")
    parser.add_argument("--seed", type=int, metavar="S", help="default: 0")
    return parser


if __name__ == "__main__":
    main()
