"""audit.html: what published answers show, for a reader, as one file like a run's report."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from data_prep.answers.sheets import VariantPair
from equipoise.audit.answers import CONFIDENCE, MARGIN, Audited, Beside, Compared, Figure
from equipoise.audit.page import blank
from equipoise.report import charts
from equipoise.report.report import Chart, describe, render
from equipoise.report.tables import Cell, Section, Table, signed_change
from equipoise.report.words import (
    MISSING,
    Estimate,
    Pair,
    Stage,
    figure_and_interval,
    figure_with_interval,
    heading,
    p_value,
    printable,
)

_POINTS = f"{100 * MARGIN:g} points"
EQUAL = {
    "kept": f"equal within {_POINTS}",
    "lost": f"more than {_POINTS} apart",
    "not shown": "equality not shown",
}
_PAIR_NOTE = (
    "Paired on the same items. Direction: McNemar's test, p after Holm's correction over all "
    "pairs of the page; equality is shown where the interval of 90% of the difference is within "
    f"{_POINTS}. A flip is another answer; how many there are says by itself nothing of who is "
    "favoured. Beside each yardstick, which changes something else, stands by how much the flips "
    "are more, on the items that have both."
)
_YARDSTICK_NOTE = "Pairs in which nothing that should matter was changed: how often answers flip."
_FLIPPED_NOTE = (
    "Of each pair and question the items that flipped for the most answerers, with the answers of "
    "the first two. They were chosen for flipping; how often that happens is above. The texts are "
    "in the source, under the item's name."
)
_RATE_NOTE = "Of all answers that could be read, variant by variant."
_READERS_NOTE = (
    "Each text was read by several people, and every variant by others: rows of one question "
    "differ by people too. Disagreement is of two people who read the same text."
)


def answers_page(audited: Audited, content: dict[str, Any]) -> str:
    """The page; `content` is that of audit.json, whose head it shows."""
    sections = [_pair_section(audited, pair) for pair in _pairs(audited, "counterfactual")]
    sections += [*_flipped(audited), *_yardsticks(audited), _rates(audited), *_readings(audited)]
    view = blank(f"{printable(content['title'])}: published answers")
    return render(
        replace(
            view,
            facts=tuple(_facts(content)),
            outcome=outcome(audited),
            notes=tuple(map(printable_note, (*content["caveats"], *content["notes"]))),
            charts_title="Shares with their intervals",
            charts=tuple(_charts(audited)),
            sections=tuple(sections),
            provenance=tuple(
                (heading(key), describe(content[key])) for key in ("files", "equipoise", "made")
            ),
        )
    )


def printable_note(text: str) -> str:
    """A sentence of the source, or of what could not be read."""
    return printable(text, 1000)


def label_of(each: Any, audited: Audited) -> str:
    """Whose answers a row has, and to what, where there is more than one question."""
    questions = {compared.question for compared in audited.compared}
    return each.answerer if len(questions) == 1 else f"{each.answerer}: {each.question}"


def outcome(audited: Audited) -> str:
    """What was found, in two sentences."""
    pairs = audited.of_role("counterfactual")
    differ = sum(each.verdict == "differs" for each in pairs)
    equal = sum(each.equal == "kept" for each in pairs)
    told = (
        f"In {differ} of {len(pairs)} comparisons one side is favoured; {equal} are shown to be "
        f"equal within {_POINTS}."
    )
    beside = [each.beside for each in pairs if each.beside]
    if not beside:
        return f"{told} There is no yardstick for flips."
    more = sum(all(b.verdict == "more flips" for b in each) for each in beside)
    return f"{told} In {more} of {len(beside)} answers flip more often than in each yardstick."


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Source", printable(content["where"])
    yield "Licence", printable(content["licence"])
    yield "Answerers", f"{len(content['answerers'])}"
    yield "Items", f"{content['items']:,}"
    yield "Intervals", f"{100 * CONFIDENCE:g}%"


def _pairs(audited: Audited, role: str) -> list[VariantPair]:
    return list(dict.fromkeys(each.pair for each in audited.of_role(role)))


def _charts(audited: Audited) -> Iterator[Chart]:
    """A chart for each counterfactual pair and question."""
    for pair in _pairs(audited, "counterfactual"):
        of_pair = [each for each in audited.compared if each.pair == pair]
        for question in dict.fromkeys(each.question for each in of_pair):
            rows = [each for each in of_pair if each.question == question]
            yield _chart(pair, question, rows)


def _chart(pair: VariantPair, question: str, compared: Sequence[Compared]) -> Chart:
    names: dict[Stage, str] = {"before": printable(pair.first), "after": printable(pair.second)}
    rows: list[tuple[str, Pair]] = [
        (printable(e.answerer, 40), {"before": estimate(e.first), "after": estimate(e.second)})
        for e in compared
    ]
    told = "; ".join(
        f"{name}: {', '.join(f'{names[s]} {figure_with_interval(e)}' for s, e in both.items())}"
        for name, both in rows
    )
    svg = charts.paired_intervals(rows, axis="share", label=told, named=lambda stage: names[stage])
    return Chart(svg, f"{heading(printable(question))}: {names['before']} and {names['after']}.")


def estimate(value: Figure) -> Estimate:
    """A figure as the report writes them."""
    return Estimate(value.value, value.low, value.high)


def _cell(value: Figure, note: str = "") -> Cell:
    return Cell(*figure_and_interval(estimate(value)), note, "number")


def _pair_section(audited: Audited, pair: VariantPair) -> Section:
    """Two tables: who is favoured, and how often answers flip beside each yardstick."""
    rows = [each for each in audited.compared if each.pair == pair]
    yardsticks = list(dict.fromkeys(b.yardstick for each in rows for b in each.beside))
    favoured = Table(
        ("Answers of", printable(pair.first), printable(pair.second), "Difference", "Direction"),
        tuple((_label(each, audited), *_direction_cells(each)) for each in rows),
    )
    flips = Table(
        (
            "Answers of",
            "Flips",
            *(f"Flips from {told_pair(yardstick)}" for yardstick in yardsticks),
        ),
        tuple((_label(each, audited), *_flip_cells(each, yardsticks)) for each in rows),
    )
    return Section(heading(told_pair(pair)), _PAIR_NOTE, (("", favoured), ("", flips)))


def told_pair(pair: VariantPair) -> str:
    """A pair in words."""
    return f"{printable(pair.first)} to {printable(pair.second)}"


def _label(each: Compared, audited: Audited) -> Cell:
    return Cell(printable(label_of(each, audited)), note=f"{each.n:,} items")


def _direction_cells(each: Compared) -> tuple[Cell, ...]:
    """Both shares, their difference and the verdict."""
    return (
        _cell(each.first),
        _cell(each.second),
        Cell(*signed_change(estimate(each.difference)), kind="number"),
        Cell(direction(each), note=f"p {p_value(each.p_holm)}; {EQUAL[each.equal]}"),
    )


def _flip_cells(each: Compared, yardsticks: Sequence[VariantPair]) -> tuple[Cell, ...]:
    of = {b.yardstick: b for b in each.beside}
    return (
        _cell(each.flips.rate, _flips_note(each)),
        *(_beside_cell(of[y]) if y in of else Cell(MISSING) for y in yardsticks),
    )


def direction(each: Compared) -> str:
    """Which side is favoured, in words."""
    if each.verdict == "no evidence":
        return "no evidence"
    higher = each.pair.second if (each.difference.value or 0) > 0 else each.pair.first
    return f"{printable(higher)} higher"


def _flips_note(each: Compared) -> str:
    told = (
        f"{each.flips.gained} towards {printable(each.pair.second)}, {each.flips.lost} towards "
        f"{printable(each.pair.first)}"
    )
    return f"{told}, {each.flips.among} neither" if each.flips.among else told


def _beside_cell(beside: Beside) -> Cell:
    change, interval = signed_change(estimate(beside.excess))
    note = f"flips less these: {change} ({interval}), p {p_value(beside.p_holm)}: {beside.verdict}"
    return _cell(beside.rate, note)


def _flipped(audited: Audited) -> Iterator[Section]:
    """Items that flipped, the answers of two answerers side by side."""
    if not audited.flipped:
        return
    answerers = list(dict.fromkeys(name for each in audited.flipped for name in each.answers))
    rows = tuple(
        (
            Cell(printable(each.item), note=heading(printable(each.question))),
            Cell(told_pair(each.pair)),
            Cell(printable(each.right) or MISSING),
            *(Cell(_told_answers(each.answers.get(name))) for name in answerers),
            Cell(f"{each.flips:,} of {each.n:,}", kind="number"),
        )
        for each in audited.flipped
    )
    columns = ("Item", "Variants", "Right", *map(printable, answerers), "Flipped for")
    yield Section("Items that flipped", _FLIPPED_NOTE, (("", Table(columns, rows)),))


def _told_answers(answers: tuple[str, str] | None) -> str:
    if answers is None:
        return MISSING
    first, second = map(printable, answers)
    return f"{first} in both" if first == second else f"{first} \N{RIGHTWARDS ARROW} {second}"


def _yardsticks(audited: Audited) -> Iterator[Section]:
    pairs = _pairs(audited, "yardstick")
    if not pairs:
        return
    columns = ("Answers of", "Variants", "First", "Second", "Difference", "Direction", "Flips")
    rows = tuple(
        (
            _label(each, audited),
            Cell(told_pair(each.pair)),
            *_direction_cells(each),
            *_flip_cells(each, ()),
        )
        for pair in pairs
        for each in audited.compared
        if each.pair == pair
    )
    yield Section("Yardsticks", _YARDSTICK_NOTE, ((f"{len(rows)} rows", Table(columns, rows)),))


def _rates(audited: Audited) -> Section:
    variants = list(dict.fromkeys(rate.variant for rate in audited.rates))
    by = {(label_of(rate, audited), rate.variant): rate for rate in audited.rates}
    labels = dict.fromkeys(label for label, _ in by)
    rows = tuple(
        (
            Cell(printable(label)),
            *(
                _cell(by[label, v].rate, _no_option(by[label, v].no_option))
                if (label, v) in by
                else Cell(MISSING)
                for v in variants
            ),
        )
        for label in labels
    )
    table = Table(("Answers of", *map(printable, variants)), rows)
    return Section("Every variant", _RATE_NOTE, ((f"{len(rows)} rows", table),), folded=True)


def _no_option(count: int) -> str:
    return f"{count} named no option" if count else ""


def _readings(audited: Audited) -> Iterator[Section]:
    if not audited.readings:
        return
    rows = tuple(
        (
            Cell(heading(printable(each.question)), note=f"{each.n:,} items"),
            Cell(printable(each.variant)),
            _cell(each.rate),
            _cell(each.disagreement),
        )
        for each in audited.readings
    )
    table = Table(("Question", "Variant", "Share", "Two disagree"), rows)
    yield Section("What people said", _READERS_NOTE, ((f"{len(rows)} rows", table),))
