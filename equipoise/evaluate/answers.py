"""Audit of published answers: variants of the same items compared in pairs, by exact tests.

An item is a counterfactual set of the task `choice` with one reply to each variant, right where it
is the answer that counts. Two things are asked of a pair: whether one side is favoured (direction:
its accuracy compared, variant with variant), and whether answers change more often than they do
where nothing that matters was changed (flips: its flip rate compared with that of a yardstick).
Both tests are McNemar's, on the same items. What one answer to a variant can show, and what it
cannot, is in docs/audit.md.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.answers.sheets import NO_OPTION, Published, Readers, Sheet, VariantPair
from environments.base import TEST_SPLIT, Rollout, Score
from environments.choice import ChoiceEnvironment, ChoiceSettings
from environments.measurement import Margin, Measurement
from equipoise.statistics.compare import Guard, MetricComparison, compare
from equipoise.statistics.intervals import Shares, StatisticsSettings, holm, share_bounds

Yes = NDArray[np.bool_]
#: Of an answerer and a question: variant -> item -> the reply with its score.
_Scored = Mapping[str, Mapping[str, tuple[Rollout, Score]]]
Direction = Literal["differs", "no evidence"]
Frequency = Literal["more flips", "fewer flips", "no evidence"]

CONFIDENCE = 0.95
#: Two shares that are closer than this are taken for equal, where their interval shows it.
MARGIN = 0.05
#: The tests are exact, and nothing is drawn.
SETTINGS = StatisticsSettings(confidence=CONFIDENCE)
_CHOICE = ChoiceEnvironment(ChoiceSettings())
#: Items that are shown of a pair and question; the others are counted.
FLIPPED_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Figure:
    """A share or a difference of shares, with its interval if it has one."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """How often an answerer was right in a variant, or gave the answer that is counted.

    `n` answers could be read, `no_option` of which named none of the options.
    """

    answerer: str
    question: str
    variant: str
    n: int
    rate: Figure
    no_option: int


@dataclass(frozen=True, slots=True)
class Flips:
    """The items whose answer is another one in the second variant.

    `gained` count in the second alone, `lost` in the first alone; `among` count in neither.
    """

    rate: Figure
    gained: int
    lost: int
    among: int


@dataclass(frozen=True, slots=True)
class FlipTest:
    """The flips of a pair tested against those of a yardstick, on the `n` items of both."""

    yardstick: VariantPair
    n: int
    rate: Figure
    excess: Figure
    p: float
    p_holm: float = 1.0
    verdict: Frequency = "no evidence"


@dataclass(frozen=True, slots=True)
class Compared:
    """One answerer, one question, one pair of variants, on the `n` items answered in both.

    `difference` is second minus first, `equal` whether it is shown to be within `MARGIN`, and
    `noise` how far from 0 chance alone keeps the difference, as often as `CONFIDENCE` says.
    """

    answerer: str
    question: str
    pair: VariantPair
    n: int
    first: Figure
    second: Figure
    difference: Figure
    noise: float | None
    p: float
    equal: Guard
    flips: Flips
    beside: tuple[FlipTest, ...] = ()
    p_holm: float = 1.0
    verdict: Direction = "no evidence"


@dataclass(frozen=True, slots=True)
class Reading:
    """Several people's answers to a variant: how often the counted one, how often two disagree."""

    question: str
    variant: str
    n: int
    rate: Figure
    disagreement: Figure


@dataclass(frozen=True, slots=True)
class FlippedItem:
    """An item that flipped: what is right, if that is known, and answerer -> its two answers.

    `flips` of the `n` answerers who answered both variants gave two answers. `texts` are those of
    the two variants, empty where the source has none.
    """

    pair: VariantPair
    question: str
    item: str
    right: str
    answers: Mapping[str, tuple[str, str]]
    flips: int
    n: int
    texts: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class FlippedItems:
    """Of a pair and question the items that flipped for the most answerers, of `n` that did."""

    pair: VariantPair
    question: str
    items: tuple[FlippedItem, ...]
    n: int


@dataclass(frozen=True, slots=True)
class Audited:
    """All that is told of published answers."""

    rates: tuple[Rate, ...]
    compared: tuple[Compared, ...]
    readings: tuple[Reading, ...]
    flipped: tuple[FlippedItems, ...]

    def of_role(self, role: str) -> tuple[Compared, ...]:
        """The comparisons whose pair has this role."""
        return tuple(comparison for comparison in self.compared if comparison.pair.role == role)


def audit_answers(published: Published) -> Audited:
    """Every variant, every pair, and what people said.

    Holm's correction is over the direction tests of all pairs, and again over all tests of flips
    beside a yardstick.
    """
    rates, compared = list[Rate](), list[Compared]()
    for sheet in published.sheets:
        scored = _score(sheet)
        for variant, answers in sheet.answers.items():
            items = list(scored[variant])
            rate = _share(_of_items(_yes(_accuracy(scored, variant, items)))) if items else Figure()
            none = answers.count(NO_OPTION)
            rates.append(Rate(sheet.answerer, sheet.question, variant, len(items), rate, none))
        compared += _pairs(sheet, scored, published.pairs)
    readings = [reading for readers in published.readers for reading in _readings(readers)]
    flipped = tuple(_flipped(published))
    return Audited(tuple(rates), tuple(_correct(compared)), tuple(readings), flipped)


# --- figures -------------------------------------------------------------------------------------


def _shares(hits: NDArray[Any], trials: NDArray[Any]) -> Shares:
    """Of items, which are clusters of one stratum."""
    strata = np.zeros(len(hits), dtype=np.intp)
    return Shares(hits.astype(np.float64), trials.astype(np.float64), strata)


def _of_items(hits: Yes) -> Shares:
    return _shares(hits, np.ones(len(hits)))


def _share(shares: Shares) -> Figure:
    """A share with Wilson's interval; none of fewer than two items."""
    if not shares.trials.sum():
        return Figure()
    value = float(shares.share)
    if len(shares.trials) < 2:
        return Figure(value)
    low, high = share_bounds(shares, CONFIDENCE)
    return Figure(value, float(low), float(high))


def _difference(change: MetricComparison) -> Figure:
    return Figure(change.difference, change.low, change.high)


def _p(change: MetricComparison) -> float:
    return 1.0 if change.p is None else change.p


# --- variants and pairs --------------------------------------------------------------------------


def _score(sheet: Sheet) -> _Scored:
    """The answers that could be read as replies; one without an option has an option of its own."""
    targets = sheet.gold or (sheet.counted,) * len(sheet.items)
    answered = {answer for answers in sheet.answers.values() for answer in answers if answer}
    labels = (*sorted({*targets, *answered} - {NO_OPTION}), NO_OPTION)
    scored = {}
    for variant, answers in sheet.answers.items():
        rollouts = [
            Rollout(
                *(item, item, TEST_SPLIT, "", f"Answer: {answer}"),
                {"labels": labels, "options": labels, "variant": variant, "gold": target},
            )
            for item, target, answer in zip(sheet.items, targets, answers, strict=True)
            if answer is not None
        ]
        pairs = zip(rollouts, _CHOICE.score(rollouts), strict=True)
        scored[variant] = {rollout.set_id: (rollout, score) for rollout, score in pairs}
    return scored


def _shared(scored: _Scored, *variants: str) -> list[str]:
    """The items that have an answer to all of the variants."""
    first, *others = (scored[variant] for variant in variants)
    return [item for item in first if all(item in answers for answers in others)]


def _measured(
    scored: _Scored, name: str, variants: Sequence[str], items: Sequence[str], guard: float | None
) -> Measurement:
    """One metric of `choice` over these items, whose outcome is a yes or no in each of them."""
    rows = [scored[variant][item] for item in items for variant in variants]
    measurement = _CHOICE.measure([rollout for rollout, _ in rows], [score for _, score in rows])
    metric = measurement.metrics[name]
    alone = replace(
        metric,
        better=None,
        floor=False,
        outcomes=metric.at(measurement.sums) > 0,
        guard=None if guard is None else Margin(guard),
    )
    return replace(measurement, metrics={name: alone}, breakdowns={}, null_sums=None)


def _accuracy(scored: _Scored, variant: str, items: Sequence[str]) -> Measurement:
    return _measured(scored, "accuracy", (variant,), items, MARGIN)


def _flip_rate(scored: _Scored, pair: VariantPair, items: Sequence[str]) -> Measurement:
    return _measured(scored, "flip_rate", (pair.first, pair.second), items, None)


def _yes(measurement: Measurement) -> Yes:
    (metric,) = measurement.metrics.values()
    assert metric.outcomes is not None
    return metric.outcomes


def _pairs(sheet: Sheet, scored: _Scored, pairs: Sequence[VariantPair]) -> Iterator[Compared]:
    """The pairs whose variants the sheet has; a counterfactual one beside each yardstick."""
    sheet_pairs = [pair for pair in pairs if {pair.first, pair.second} <= scored.keys()]
    for pair in sheet_pairs:
        compared = _compared(sheet, scored, pair)
        if pair.role == "counterfactual":
            yardsticks = (candidate for candidate in sheet_pairs if candidate.measures(pair))
            tests = tuple(_flip_test(pair, yardstick, scored) for yardstick in yardsticks)
            compared = replace(compared, beside=tests)
        yield compared


def _compared(sheet: Sheet, scored: _Scored, pair: VariantPair) -> Compared:
    items = _shared(scored, pair.first, pair.second)
    if not items:
        flips, change = Flips(Figure(), 0, 0, 0), MetricComparison()
        first = second = np.zeros(0, dtype=np.bool_)
    else:
        before, after = (_accuracy(scored, name, items) for name in (pair.first, pair.second))
        change = compare(before, after, SETTINGS)["accuracy"]
        first, second = _yes(before), _yes(after)
        flipped = _yes(_flip_rate(scored, pair, items))
        flips = Flips(
            _share(_of_items(flipped)),
            gained=int(np.count_nonzero(second & ~first)),
            lost=int(np.count_nonzero(first & ~second)),
            among=int(np.count_nonzero(flipped & (first == second))),
        )
    return Compared(
        sheet.answerer,
        sheet.question,
        pair,
        len(items),
        _share(_of_items(first)),
        _share(_of_items(second)),
        _difference(change),
        _noise(first, second),
        _p(change),
        change.guard or "not shown",
        flips,
    )


def _noise(first: Yes, second: Yes) -> float | None:
    """How far apart two shares are by chance, if each item that changed did so either way alike.

    The bound of the exact distribution that McNemar's test is of, within which 95% of it lie.
    """
    if not len(first):
        return None
    changed = int(np.count_nonzero(first != second))
    probability = 0.0
    for gap in range(changed % 2, changed + 1, 2):  # of one direction's changes and the other's
        sides = 2 if gap else 1
        probability += sides * math.comb(changed, (changed + gap) // 2) / 2**changed
        if probability >= CONFIDENCE:
            return gap / len(first)
    return changed / len(first)


def _flip_test(pair: VariantPair, yardstick: VariantPair, scored: _Scored) -> FlipTest:
    items = _shared(scored, yardstick.first, yardstick.second, pair.first, pair.second)
    if not items:
        return FlipTest(yardstick, 0, Figure(), Figure(), 1.0)
    control, flips = (_flip_rate(scored, compared, items) for compared in (yardstick, pair))
    change = compare(control, flips, SETTINGS)["flip_rate"]
    rate = _share(_of_items(_yes(control)))
    return FlipTest(yardstick, len(items), rate, _difference(change), _p(change))


def _correct(compared: Sequence[Compared]) -> Iterator[Compared]:
    """Holm's correction over both families, and the verdicts that follow."""
    direction = holm({n: comparison.p for n, comparison in enumerate(compared)})
    frequency = holm(
        {
            (n, m): b.p
            for n, comparison in enumerate(compared)
            for m, b in enumerate(comparison.beside)
        }
    )
    level = 1 - CONFIDENCE
    for n, comparison in enumerate(compared):
        tests = tuple(
            replace(b, p_holm=frequency[n, m], verdict=_frequency(b, frequency[n, m] < level))
            for m, b in enumerate(comparison.beside)
        )
        verdict: Direction = "differs" if direction[n] < level else "no evidence"
        yield replace(comparison, p_holm=direction[n], verdict=verdict, beside=tests)


def _frequency(test: FlipTest, evidence: bool) -> Frequency:
    if not evidence or not test.excess.value:
        return "no evidence"
    return "more flips" if test.excess.value > 0 else "fewer flips"


# --- items that flipped --------------------------------------------------------------------------


def _flipped(published: Published) -> Iterator[FlippedItems]:
    """A few items of each counterfactual pair and question, those worst that most flipped on."""
    for pair in published.pairs:
        if pair.role != "counterfactual":
            continue
        for question in dict.fromkeys(sheet.question for sheet in published.sheets):
            sheets = [
                sheet
                for sheet in published.sheets
                if sheet.question == question and {pair.first, pair.second} <= sheet.answers.keys()
            ]
            items = [item for item in _items(sheets, pair, published.texts) if item.flips]
            worst = sorted(items, key=lambda item: (-item.flips, item.n))[:FLIPPED_SHOWN]
            if worst:
                yield FlippedItems(pair, question, tuple(worst), len(items))


def _items(
    sheets: Sequence[Sheet], pair: VariantPair, texts: Mapping[str, Mapping[str, str]]
) -> Iterator[FlippedItem]:
    """Yield every item that was answered in both variants."""
    answers: dict[str, dict[str, tuple[str, str]]] = {}
    gold: dict[str, str] = {}
    for sheet in sheets:
        gold |= dict(zip(sheet.items, sheet.gold, strict=False))
        both = zip(sheet.answers[pair.first], sheet.answers[pair.second], strict=True)
        for item, (first, second) in zip(sheet.items, both, strict=True):
            if first is not None and second is not None:
                answers.setdefault(item, {})[sheet.answerer] = (first, second)
    for item, by_answerer in answers.items():
        flips = sum(first != second for first, second in by_answerer.values())
        item_texts = texts.get(item, {})
        pair_texts = item_texts.get(pair.first, ""), item_texts.get(pair.second, "")
        question = sheets[0].question
        yield FlippedItem(
            pair,
            question,
            item,
            gold.get(item, ""),
            by_answerer,
            flips,
            len(by_answerer),
            pair_texts,
        )


# --- people --------------------------------------------------------------------------------------


def _readings(readers: Readers) -> Iterator[Reading]:
    """Each variant by itself: others read the next one."""
    for variant, answers in readers.answers.items():
        per_item = [[a for a in replies if a is not None] for replies in answers]
        counted = np.array([sum(a == readers.counted for a in replies) for replies in per_item])
        trials = np.array([len(replies) for replies in per_item])
        disagreements = np.array([sum(a != b for a, b in combinations(r, 2)) for r in per_item])
        reader_pairs = trials * (trials - 1) // 2
        yield Reading(
            readers.question,
            variant,
            int(np.count_nonzero(trials)),
            _share(_shares(counted, trials)),
            _share(_shares(disagreements, reader_pairs)),
        )
