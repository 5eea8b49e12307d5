"""Published answers for a reader: on the terminal, and as audit.html like a run's report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from data_prep.answers.sheets import VariantPair
from equipoise.evaluate.answers import (
    CONFIDENCE,
    MARGIN,
    Audited,
    Compared,
    Figure,
    FlippedItem,
)
from equipoise.report import charts
from equipoise.report.document import (
    Cell,
    Chart,
    Charts,
    Document,
    Provenance,
    Table,
    Tables,
    describe,
)
from equipoise.report.renderers import page, print_table
from equipoise.report.sets import Flip, FlipGroup, Flips, sides_of
from equipoise.report.tables import figure_cell
from equipoise.report.words import (
    MISSING,
    Estimate,
    figure,
    figure_with_interval,
    heading,
    p_value,
    printable,
)
from equipoise.terminal.console import Reporter

_POINTS = f"{100 * MARGIN:g} points"
EQUAL = {
    "kept": f"equal within {_POINTS}",
    "lost": f"more than {_POINTS} apart",
    "not shown": "equality not shown",
}
_NOISE_NOTE = (
    "Noise alone: if the variants made no difference, items that count in one of them alone would "
    f"do so in either as often, and {100 * CONFIDENCE:g}% of the differences would lie within the "
    "band. Answers at random, without a look at the variant, have such a band too."
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
_DIRECTION = ("Difference", "Equality", "Noise alone", "p after Holm", "Direction")
_FLIPS = ("Flips", "Yardstick", "Its flips", "Flips less these", "p after Holm", "Verdict")
_LEVEL = f"{100 * CONFIDENCE:g}%"
_RATE_NOTE = "Of all answers that could be read, variant by variant."
_READERS_NOTE = (
    "Each text was read by several people, and every variant by others: rows of one question "
    "differ by people too. Disagreement is of two people who read the same text."
)


def answers_page(audited: Audited, content: dict[str, Any]) -> str:
    """The page; `content` is that of audit.json, whose head it shows."""
    drawn = tuple(_charts(audited))
    keys = ("files", "equipoise", "made")
    facts = tuple((heading(key), describe(content[key])) for key in keys)
    return page(
        Document(
            title=f"{printable(content['title'])}: published answers",
            facts=(
                ("Source", printable(content["where"])),
                ("Licence", printable(content["licence"])),
                ("Answerers", f"{len(content['answerers'])}"),
                ("Items", f"{content['items']:,}"),
                ("Intervals", _LEVEL),
            ),
            outcome=outcome(audited),
            notes=tuple(printable(n, 1000) for n in (*content["caveats"], *content["notes"])),
            sections=(
                *((Charts("Is one side favoured?", "charts", charts=drawn),) if drawn else ()),
                *_flips(audited),
                *_pair_sections(audited),
                *_yardsticks(audited),
                _rates(audited),
                *_readings(audited),
                Provenance("Provenance", "provenance", facts=facts),
            ),
        )
    )


def label_of(row: Any, audited: Audited) -> str:
    """Label a row by its answerer, and by its question if there are several."""
    questions = {compared.question for compared in audited.compared}
    return row.answerer if len(questions) == 1 else f"{row.answerer}: {row.question}"


def outcome(audited: Audited) -> str:
    """Sum up the findings in two sentences."""
    pairs = audited.of_role("counterfactual")
    differ = sum(comparison.verdict == "differs" for comparison in pairs)
    equal = sum(comparison.equal == "kept" for comparison in pairs)
    sentence = (
        f"In {differ} of {len(pairs)} comparisons one side is favoured; {equal} are shown to be "
        f"equal within {_POINTS}."
    )
    test_sets = [comparison.beside for comparison in pairs if comparison.beside]
    if not test_sets:
        return f"{sentence} There is no yardstick for flips."
    more = sum(all(b.verdict == "more flips" for b in tests) for tests in test_sets)
    return (
        f"{sentence} In {more} of {len(test_sets)} answers flip more often than in each yardstick."
    )


def _pairs(audited: Audited, role: str) -> list[VariantPair]:
    return list(dict.fromkeys(comparison.pair for comparison in audited.of_role(role)))


def _charts(audited: Audited) -> Iterator[Chart]:
    """A forest plot for each counterfactual pair and question, all on one scale."""
    compared = audited.of_role("counterfactual")
    ends = [
        abs(end)
        for c in compared
        for end in (c.difference.value, c.difference.low, c.difference.high, c.noise)
        if end is not None
    ]
    for pair in _pairs(audited, "counterfactual"):
        of_pair = [comparison for comparison in compared if comparison.pair == pair]
        for question in dict.fromkeys(comparison.question for comparison in of_pair):
            rows = [comparison for comparison in of_pair if comparison.question == question]
            yield _chart(pair, question, rows, 1.08 * max(ends, default=1.0))


def _chart(pair: VariantPair, question: str, compared: Sequence[Compared], reach: float) -> Chart:
    rows = [
        (printable(e.answerer, 40), replace(estimate(e.difference), floor_high=e.noise))
        for e in compared
    ]
    label = "; ".join(
        f"{name} {figure_with_interval(e)}, noise alone {_band(e.floor_high)}" for name, e in rows
    )
    words = f"{printable(pair.second)} minus {printable(pair.first)}"
    svg = charts.forest(rows, axis=f"share, {words}", label=label, signed=True, reach=reach)
    band = f"Band: {_LEVEL} of the differences that chance alone gives."
    return Chart(svg, f"{heading(printable(question))}: {words}. {band}")


def _band(noise: float | None) -> str:
    return MISSING if noise is None else f"\N{PLUS-MINUS SIGN}{figure(noise, 2)}"


def estimate(value: Figure) -> Estimate:
    """A figure as the report writes them."""
    return Estimate(value.value, value.low, value.high)


def _cell(value: Figure, note: str = "") -> Cell:
    return replace(figure_cell(estimate(value)), note=note)


def _pair_sections(audited: Audited) -> Iterator[Tables]:
    """Of each pair two tables: who is favoured, and how often answers flip beside yardsticks."""
    for number, pair in enumerate(_pairs(audited, "counterfactual"), start=1):
        compared = [comparison for comparison in audited.compared if comparison.pair == pair]
        favoured = tuple((_label(c, audited), *_direction_cells(c)) for c in compared)
        flips = tuple(row for c in compared for row in _flip_rows(c, audited))
        variants = printable(pair.first), printable(pair.second)
        title = heading(describe_pair(pair))
        tables = (
            (
                f"{title}, who is favoured: {len(favoured)} rows",
                Table(("Answers of", *variants, *_DIRECTION), favoured, _LEVEL),
            ),
            (
                f"{title}, how often answers flip: {len(flips)} rows",
                Table(("Answers of", *_FLIPS), flips, _LEVEL),
            ),
        )
        yield Tables(title, f"pair-{number}", _PAIR_NOTE, tables, folded=True)


def describe_pair(pair: VariantPair) -> str:
    """A pair in words."""
    return f"{printable(pair.first)} to {printable(pair.second)}"


def _label(comparison: Compared, audited: Audited) -> Cell:
    return Cell(printable(label_of(comparison, audited)), note=f"{comparison.n:,} items")


def _direction_cells(comparison: Compared) -> tuple[Cell, ...]:
    """Both shares, their difference, whether it is none, what noise alone gives, p and verdict."""
    return (
        _cell(comparison.first),
        _cell(comparison.second),
        figure_cell(estimate(comparison.difference), signed=True),
        Cell(EQUAL[comparison.equal]),
        Cell(_band(comparison.noise), kind="number"),
        Cell(p_value(comparison.p_holm), kind="number"),
        Cell(direction(comparison), kind="verdict"),
    )


def _flip_rows(comparison: Compared, audited: Audited) -> Iterator[tuple[Cell, ...]]:
    """How often answers flip beside each yardstick; one row where there is none."""
    label, flips = _label(comparison, audited), _flips_cell(comparison)
    if not comparison.beside:
        yield label, flips, *[Cell(MISSING)] * 5
    for test in comparison.beside:
        yield (
            label,
            flips,
            Cell(describe_pair(test.yardstick)),
            _cell(test.rate),
            figure_cell(estimate(test.excess), signed=True),
            Cell(p_value(test.p_holm), kind="number"),
            Cell(test.verdict, kind="verdict"),
        )
        flips = replace(flips, note="")


def direction(comparison: Compared) -> str:
    """Which side is favoured, in words."""
    if comparison.verdict == "no evidence":
        return "no evidence"
    higher = (
        comparison.pair.second if (comparison.difference.value or 0) > 0 else comparison.pair.first
    )
    return f"{printable(higher)} higher"


def _flips_cell(comparison: Compared) -> Cell:
    note = (
        f"{comparison.flips.gained} towards {printable(comparison.pair.second)}, "
        f"{comparison.flips.lost} towards {printable(comparison.pair.first)}"
    )
    among = f", {comparison.flips.among} neither" if comparison.flips.among else ""
    return _cell(comparison.flips.rate, note + among)


def _flips(audited: Audited) -> tuple[Flips, ...]:
    """Items that flipped, the two variants side by side with all answers to them."""
    if not audited.flipped:
        return ()
    groups = tuple(
        FlipGroup(
            f"{heading(describe_pair(group.pair))}, {printable(group.question)}: "
            f"{len(group.items)} of {group.n:,} items that flipped",
            tuple(map(_flip, group.items)),
        )
        for group in audited.flipped
    )
    has_texts = any(
        text for group in audited.flipped for item in group.items for text in item.texts
    )
    note = _FLIPPED_NOTE + _NO_TEXTS * (not has_texts)
    return (Flips("Items that flipped", "flips", note, groups),)


def _flip(item: FlippedItem) -> Flip:
    first, second = (
        {answerer: answers[n] for answerer, answers in item.answers.items()} for n in (0, 1)
    )
    return Flip(
        title=f"{printable(item.item)}: flipped for {item.flips:,} of {item.n:,}",
        facts=f"Right: {printable(item.right)}" if item.right else "",
        sides=sides_of((item.pair.first, item.pair.second), item.texts, (first, second)),
    )


def _yardsticks(audited: Audited) -> Iterator[Tables]:
    pairs = _pairs(audited, "yardstick")
    if not pairs:
        return
    columns = ("Answers of", "Variants", "First", "Second", *_DIRECTION, "Flips")
    rows = tuple(
        (
            _label(comparison, audited),
            Cell(describe_pair(comparison.pair)),
            *_direction_cells(comparison),
            _flips_cell(comparison),
        )
        for pair in pairs
        for comparison in audited.compared
        if comparison.pair == pair
    )
    yield _folded("Yardsticks", "yardsticks", _YARDSTICK_NOTE, Table(columns, rows, _LEVEL))


def _folded(title: str, anchor: str, note: str, table: Table) -> Tables:
    summary = f"{title}: {len(table.rows)} rows"
    return Tables(title, anchor, note, ((summary, table),), folded=True)


def _rates(audited: Audited) -> Tables:
    variants = list(dict.fromkeys(rate.variant for rate in audited.rates))
    cells = {}
    for rate in audited.rates:
        note = f"{rate.no_option} named no option" if rate.no_option else ""
        cells[label_of(rate, audited), rate.variant] = _cell(rate.rate, note)
    rows = tuple(
        (Cell(printable(label)), *(cells.get((label, v), Cell(MISSING)) for v in variants))
        for label in dict.fromkeys(label for label, _ in cells)
    )
    table = Table(("Answers of", *map(printable, variants)), rows)
    return _folded("Every variant", "rates", _RATE_NOTE, table)


def _readings(audited: Audited) -> Iterator[Tables]:
    if not audited.readings:
        return
    rows = tuple(
        (
            Cell(heading(printable(reading.question)), note=f"{reading.n:,} items"),
            Cell(printable(reading.variant)),
            _cell(reading.rate),
            _cell(reading.disagreement),
        )
        for reading in audited.readings
    )
    table = Table(("Question", "Variant", "Share", "Two disagree"), rows)
    yield _folded("What people said", "readings", _READERS_NOTE, table)


# --- on the terminal -----------------------------------------------------------------------------


def print_audited(
    audited: Audited, content: Mapping[str, Any], reporter: Reporter, page: str
) -> None:
    """Print the tables of each pair, what was found in words, and what it is no sign of.

    `page` is the file that has the columns for which there is no room.
    """
    for section in _pair_sections(audited):
        for title, table in section.tables:
            print_table(reporter, title, table, page)
    reporter.say(f"\n{outcome(audited)}")
    for note in (*content["caveats"], *content["notes"]):
        reporter.say(f"- {note}")
