"""The tables of published answers in docs/audit.md, from what recipes/audit.py has written.

    uv run recipes/audit.py medperturb data.csv --output results/answers/medperturb
    uv run docs/experiments/published_answers.py results/answers/medperturb/audit.json

Prints Markdown: a row for each counterfactual pair, in points of a hundred, and one for what people
said where they did. `--only VARIANT` keeps the pairs that have it. `--leaderboard` prints a row for
each model over all pairs, of one audit or several.
"""

import argparse
import html
import json
from collections.abc import Iterable, Iterator, Mapping
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


def leaderboard(contents: Iterable[Json]) -> Iterator[str]:
    """A row for each model: how far apart two variants may be, the least first.

    The bound is the far end of the widest interval, so that few items rank nobody high.
    """
    head = ("answers of", "source", "comparisons", "one side favoured", "shown to be equal")
    yield _line([*head, "largest difference", "at most apart", "flips beyond every yardstick"])
    yield _line(["---"] * 8)
    rows = [_standing(content, name) for content in contents for name in content["answerers"]]
    for _, cells in sorted(rows):
        yield _line(cells)


def _standing(content: Json, name: str) -> tuple[float, list[str]]:
    pairs = [
        each
        for each in content["compared"]
        if each["answerer"] == name and each["pair"]["role"] == "counterfactual"
    ]
    widest = max(pairs, key=lambda each: abs(each["difference"]["value"]))["difference"]
    bound = max(abs(each["difference"][end]) for each in pairs for end in ("low", "high"))
    beside = [each["beside"] for each in pairs if each["beside"]]
    more = sum(all(b["verdict"] == "more flips" for b in each) for each in beside)
    return bound, [
        html.escape(name).replace("|", r"\|"),  # a file's, and it goes onto a page
        content["title"],
        f"{len(pairs)}",
        f"{sum(each['verdict'] == 'differs' for each in pairs)}",
        f"{sum(each['equal'] == 'kept' for each in pairs)}",
        _points(widest["value"], signed=True),
        _points(bound),
        f"{more} of {len(beside)}",
    ]


def _points(value: float, *, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f}"


def _p(p: float) -> str:
    return f"{p:.0e}" if p < 1e-3 else f"{p:.2f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("audits", type=Path, nargs="+", metavar="audit.json")
    parser.add_argument("--only", metavar="VARIANT")
    parser.add_argument("--leaderboard", action="store_true")
    given = parser.parse_args()
    contents = [json.loads(audit.read_text(encoding="utf-8")) for audit in given.audits]
    if given.leaderboard:
        print("\n".join(leaderboard(contents)))
        return
    [content] = contents
    print("\n".join(table(content, given.only)))
    if content["readings"]:
        print("\n" + "\n".join(people(content)))


if __name__ == "__main__":
    main()
