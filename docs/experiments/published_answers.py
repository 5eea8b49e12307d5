"""The tables of published answers in docs/audit.md, from what recipes/audit.py has written.

    uv run recipes/audit.py medperturb data.csv --output results/answers/medperturb
    uv run docs/experiments/published_answers.py results/answers/medperturb/audit.json

Prints Markdown: a row for each counterfactual pair, in points of a hundred, and one for what people
said where they did. `--only VARIANT` keeps the pairs that have it.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]


def table(content: Json, only: str | None) -> Iterator[str]:
    """The pairs, line by line."""
    several = len({each["question"] for each in content["compared"]}) > 1
    head = ["answers of", *(["to"] if several else []), "variants", "first", "second"]
    head += ["difference", "p (after Holm)", "flips", "flips in its yardsticks"]
    yield _line(head)
    yield _line(["---"] * len(head))
    for each in content["compared"]:
        pair = each["pair"]
        if pair["role"] == "counterfactual" and only in (None, pair["first"], pair["second"]):
            question = [each["question"]] if several else []
            yield _line([each["answerer"], *question, *_cells(each)])


def _cells(each: Json) -> list[str]:
    difference = each["difference"]
    low, high = (_points(difference[end], signed=True) for end in ("low", "high"))
    return [
        f"{each['pair']['first']} → {each['pair']['second']}",
        _points(each["first"]["value"]),
        _points(each["second"]["value"]),
        f"{_points(difference['value'], signed=True)} ({low} to {high})",
        f"{_p(each['p'])} ({_p(each['p_holm'])})",
        _points(each["flips"]["rate"]["value"]),
        ", ".join(
            f"{_points(b['rate']['value'])} {b['yardstick']['second']}" for b in each["beside"]
        ),
    ]


def people(content: Json) -> Iterator[str]:
    """What several readers of a text said."""
    yield _line(["question", "variant", "yes", "two readers of the text disagree"])
    yield _line(["---"] * 4)
    for each in content["readings"]:
        figures = (each["rate"], each["disagreement"])
        told = [
            f"{_points(f['value'])} ({_points(f['low'])} to {_points(f['high'])})" for f in figures
        ]
        yield _line([each["question"], each["variant"], *told])


def _points(value: float, *, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f}"


def _p(p: float) -> str:
    return f"{p:.0e}" if p < 1e-3 else f"{p:.2f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("audit", type=Path, metavar="audit.json")
    parser.add_argument("--only", metavar="VARIANT")
    given = parser.parse_args()
    content = json.loads(given.audit.read_text(encoding="utf-8"))
    print("\n".join(table(content, given.only)))
    if content["readings"]:
        print("\n" + "\n".join(people(content)))


if __name__ == "__main__":
    main()
