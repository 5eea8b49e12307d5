"""Print the tables of published answers in docs/audit.md, from what `equipoise audit` has written.

    uv run equipoise audit medperturb data.csv
    uv run docs/experiments/published_answers.py results/answers/medperturb/audit.json

Prints Markdown: a row for each counterfactual pair, in points of a hundred, and one for what people
said where they did. `--only VARIANT` keeps the pairs that have it. `--leaderboard` prints a row for
each model of one audit or several.
"""

import argparse
import html
import json
from collections.abc import Iterator, Mapping, Sequence
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
    """Yield a row for each reading by several people."""
    yield _line(["question", "variant", "yes", "two readers of the text disagree"])
    yield _line(["---"] * 4)
    for each in content["readings"]:
        figures = (each["rate"], each["disagreement"])
        told = [
            f"{_points(f['value'])} ({_points(f['low'])} to {_points(f['high'])})" for f in figures
        ]
        yield _line([each["question"], each["variant"], *told])


def leaderboard(contents: Sequence[Json]) -> Iterator[str]:
    """Yield a row for each model: its comparison whose interval reaches farthest from 0."""
    head = ["answers of", "difference, 95% interval", "noise floor", "comparison", "source"]
    yield _line(head)
    yield _line(["---"] * len(head))
    rows = [
        (content["title"], answerer, pairs)
        for content in contents
        for answerer in content["answerers"]
        if (pairs := _comparisons(content, answerer))
    ]
    for title, answerer, pairs in sorted(rows, key=lambda row: _reach(row[2][0])):
        name = html.escape(answerer).replace("|", r"\|")  # a file has it
        yield _line([name, *_standing(pairs), title])


def _comparisons(content: Json, answerer: str) -> list[Json]:
    """Return a model's counterfactual comparisons that have an interval, the farthest first."""
    pairs = [
        each
        for each in content["compared"]
        if each["answerer"] == answerer
        and each["pair"]["role"] == "counterfactual"
        and each["difference"]["low"] is not None
    ]
    return sorted(pairs, key=_reach, reverse=True)


def _reach(each: Json) -> float:
    return max(abs(each["difference"][end]) for end in ("low", "high"))


def _standing(pairs: Sequence[Json]) -> list[str]:
    """Return the cells of the first comparison."""
    pair, difference = pairs[0]["pair"], pairs[0]["difference"]
    value, low, high = (_points(difference[name], signed=True) for name in ("value", "low", "high"))
    return [
        f"{value} ({low} to {high})",
        f"±{_points(pairs[0]['noise'])}",
        f"{pairs[0]['question']}, {pair['first']} → {pair['second']} (of {len(pairs)})",
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
    options = parser.parse_args()
    contents = [json.loads(audit.read_text(encoding="utf-8")) for audit in options.audits]
    if options.leaderboard:
        print("\n".join(leaderboard(contents)))
        return
    for content in contents:
        print("\n".join(table(content, options.only)) + "\n")
        if content["readings"]:
            print("\n".join(people(content)) + "\n")


if __name__ == "__main__":
    main()
