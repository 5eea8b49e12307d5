"""audit.html: what published answers show, for a reader, as one file like a run's report."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from data_prep.answers.sheets import VariantPair
from equipoise.audit.answers import (
    CONFIDENCE,
    MARGIN,
    Audited,
    Beside,
    Compared,
    Figure,
    FlippedItem,
)
from equipoise.audit.page import blank
from equipoise.report import charts
from equipoise.report.flips import Flip, FlipGroup, Flips, sides_of
from equipoise.report.report import Chart, describe, render
from equipoise.report.tables import Cell, Section, Table, signed_change
from equipoise.report.words import (
    MISSING,
    Estimate,
    figure,
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
_NOISE_NOTE = (
    "Noise alone: if the variants made no difference, items that count in one of them alone would "
    f"do so in either as often, and {100 * CONFIDENCE:g}% of the differences would lie within the "
    "band. Whoever answers at random, without a look at the variant, has such a band too."
)
_PAIR_NOTE = (
    "Paired on the same items. Direction: McNemar's test, p after Holm's correction over all "
    "pairs of the page; equality is shown where the interval of 90% of the difference is within "
    f"{_POINTS}. A flip is another answer; how many there are says by itself nothing of who is "
    "favoured. Beside each yardstick, which changes something else, stands by how much the flips "
    f"are more, on the items that have both. {_NOISE_NOTE}"
)
_YARDSTICK_NOTE = "Pairs in which nothing that should matter was changed: how often answers flip."
_FLIPPED_NOTE = (
    "Of each pair and question the items that flipped for the most answerers, with both texts and "
    "all answers. They were chosen for flipping; how often that happens is in the tables."
)
_NO_TEXTS = " The texts are not among the answers: they are in the source, under the item's name."
#: What stands beside both shares.
_DIRECTION = ("Difference", "Noise alone", "p after Holm", "Direction")
_RATE_NOTE = "Of all answers that could be read, variant by variant."
_READERS_NOTE = (
    "Each text was read by several people, and every variant by others: rows of one question "
    "differ by people too. Disagreement is of two people who read the same text."
)


def answers_page(audited: Audited, content: dict[str, Any]) -> str:
    """The page; `content` is that of audit.json, whose head it shows."""
    sections = [_pair_section(audited, pair) for pair in _pairs(audited, "counterfactual")]
    sections += [*_yardsticks(audited), _rates(audited), *_readings(audited)]
    view = blank(f"{printable(content['title'])}: published answers")
    return render(
        replace(
            view,
            facts=tuple(_facts(content)),
            outcome=outcome(audited),
            notes=tuple(map(printable_note, (*content["caveats"], *content["notes"]))),
            charts_title="Is one side favoured?",
            charts=tuple(_charts(audited)),
            flips=_flips(audited),
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
    """A forest plot for each counterfactual pair and question, all on one scale."""
    compared = audited.of_role("counterfactual")
    ends = [abs(end) for each in compared for end in _ends(each) if end is not None]
    for pair in _pairs(audited, "counterfactual"):
        of_pair = [each for each in compared if each.pair == pair]
        for question in dict.fromkeys(each.question for each in of_pair):
            rows = [each for each in of_pair if each.question == question]
            yield _chart(pair, question, rows, 1.08 * max(ends, default=1.0))


def _ends(each: Compared) -> tuple[float | None, ...]:
    return each.difference.value, each.difference.low, each.difference.high, each.noise


def _chart(pair: VariantPair, question: str, compared: Sequence[Compared], reach: float) -> Chart:
    rows = [
        (printable(e.answerer, 40), replace(estimate(e.difference), floor_high=e.noise))
        for e in compared
    ]
    told = "; ".join(
        f"{name} {figure_with_interval(e)}, noise alone {_band(e.floor_high)}" for name, e in rows
    )
    words = f"{printable(pair.second)} minus {printable(pair.first)}"
    svg = charts.forest(rows, axis=f"share, {words}", label=told, signed=True, reach=reach)
    band = f"Band: {100 * CONFIDENCE:g}% of the differences that chance alone gives."
    return Chart(svg, f"{heading(printable(question))}: {words}. {band}")


def _band(noise: float | None) -> str:
    return MISSING if noise is None else f"\N{PLUS-MINUS SIGN}{figure(noise, 2)}"


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
        ("Answers of", printable(pair.first), printable(pair.second), *_DIRECTION),
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
    title = heading(told_pair(pair))
    tables = (
        (f"{title}, who is favoured: {len(rows)} rows", favoured),
        (f"{title}, how often answers flip: {len(rows)} rows", flips),
    )
    return Section(title, _PAIR_NOTE, tables, folded=True)


def told_pair(pair: VariantPair) -> str:
    """A pair in words."""
    return f"{printable(pair.first)} to {printable(pair.second)}"


def _label(each: Compared, audited: Audited) -> Cell:
    return Cell(printable(label_of(each, audited)), note=f"{each.n:,} items")


def _direction_cells(each: Compared) -> tuple[Cell, ...]:
    """Both shares, their difference, what noise alone gives, p and the verdict."""
    return (
        _cell(each.first),
        _cell(each.second),
        Cell(*signed_change(estimate(each.difference)), kind="number"),
        Cell(_band(each.noise), kind="number"),
        Cell(p_value(each.p_holm), kind="number"),
        Cell(direction(each), note=EQUAL[each.equal]),
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


def _flips(audited: Audited) -> Flips | None:
    """Items that flipped, the two variants side by side with all answers to them."""
    if not audited.flipped:
        return None
    groups = tuple(
        FlipGroup(
            f"{heading(told_pair(group.pair))}, {printable(group.question)}: {len(group.items)} of "
            f"{group.n:,} items that flipped",
            tuple(map(_flip, group.items)),
        )
        for group in audited.flipped
    )
    asked = any(text for group in audited.flipped for item in group.items for text in item.texts)
    return Flips("Items that flipped", _FLIPPED_NOTE + _NO_TEXTS * (not asked), groups)


def _flip(item: FlippedItem) -> Flip:
    first, second = (
        {answerer: answers[n] for answerer, answers in item.answers.items()} for n in (0, 1)
    )
    return Flip(
        title=f"{printable(item.item)}: flipped for {item.flips:,} of {item.n:,}",
        facts=f"Right: {printable(item.right)}" if item.right else "",
        sides=sides_of((item.pair.first, item.pair.second), item.texts, (first, second)),
    )


def _yardsticks(audited: Audited) -> Iterator[Section]:
    pairs = _pairs(audited, "yardstick")
    if not pairs:
        return
    columns = ("Answers of", "Variants", "First", "Second", *_DIRECTION, "Flips")
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
    yield Section(
        "Yardsticks",
        _YARDSTICK_NOTE,
        ((f"Yardsticks: {len(rows)} rows", Table(columns, rows)),),
        folded=True,
    )


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
    title = "Every variant"
    return Section(title, _RATE_NOTE, ((f"{title}: {len(rows)} rows", table),), folded=True)


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
    title = "What people said"
    yield Section(title, _READERS_NOTE, ((f"{title}: {len(rows)} rows", table),), folded=True)
