"""What is told of published answers, against scipy and by hand."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from data_prep.answers.medperturb import read
from data_prep.answers.sheets import NO_OPTION, Published, Readers, Sheet, VariantPair
from equipoise.evaluate.answers import Audited, Compared, audit_answers
from tests.data_prep.answers.published import MEDPERTURB

PAIR = VariantPair("a", "b", "counterfactual")


def mid_p(gained: int, changed: int) -> float:
    """The binomial test's p with half of what was observed, on both of its sides."""
    return float(binomtest(gained, changed).pvalue - binom.pmf(gained, changed, 0.5))


USUAL = VariantPair("a", "c", "yardstick")


def sheet(gold: str = "", who: str = "x", **answers: str) -> Sheet:
    """A letter is an answer, a dot one that could not be read."""
    columns = {v: tuple(None if a == "." else a for a in text) for v, text in answers.items()}
    items = tuple(str(n) for n in range(len(answers["a"])))
    return Sheet(who, "?", items, columns, tuple(gold), counted="" if gold else "y")


def audited(*sheets: Sheet, pairs: tuple[VariantPair, ...] = (PAIR, USUAL)) -> Audited:
    return audit_answers(Published(pairs, sheets))


def pair_of(result: Audited, pair: VariantPair = PAIR, who: str = "x") -> Compared:
    (compared,) = [c for c in result.compared if c.pair == pair and c.answerer == who]
    return compared


def test_direction_is_the_test_of_what_counts_in_one_alone() -> None:
    comparison = pair_of(audited(sheet(a="yyyyyyyyynnnyy", b="nnnnnnnnyyyyyy")))
    assert (comparison.flips.lost, comparison.flips.gained, comparison.flips.among) == (8, 3, 0)
    assert comparison.p == pytest.approx(mid_p(3, 11))
    assert comparison.first.value == pytest.approx(11 / 14)
    assert comparison.second.value == pytest.approx(6 / 14)
    assert comparison.difference.value == pytest.approx(-5 / 14)
    assert comparison.flips.rate.value == pytest.approx(11 / 14)


def test_of_items_with_a_right_answer_that_is_what_counts() -> None:
    """A flip from one wrong answer to another is a flip, and favours nobody."""
    comparison = pair_of(audited(sheet("ABCD", a="ABCA", b="ACCB")))
    assert (comparison.first.value, comparison.second.value) == (0.75, 0.5)
    assert (comparison.flips.lost, comparison.flips.gained, comparison.flips.among) == (1, 0, 1)
    assert comparison.flips.rate.value == 0.5


def test_what_could_not_be_read_is_no_number() -> None:
    result = audited(sheet(a="yy.ny", b="n.yny"))
    comparison = pair_of(result)
    assert comparison.n == 3
    assert comparison.flips.rate.value == pytest.approx(1 / 3)
    rates = {rate.variant: rate for rate in result.rates}
    assert (rates["a"].n, rates["a"].rate.value) == (4, 0.75)
    assert (rates["b"].n, rates["b"].rate.value) == (4, 0.5)


def test_an_answer_without_an_option_is_wrong_and_counted() -> None:
    plain = sheet("AAA", a="AAA", b="AAA")
    named = Sheet(
        "x", "?", plain.items, {"a": plain.answers["a"], "b": ("A", NO_OPTION, "A")}, plain.gold
    )
    result = audited(named)
    assert pair_of(result).flips.lost == 1
    assert {rate.variant: rate.no_option for rate in result.rates} == {"a": 0, "b": 1}


def test_nothing_to_compare_gives_no_figure_and_no_evidence() -> None:
    comparison = pair_of(audited(sheet(a="y.", b=".n")))
    assert (comparison.n, comparison.first.value, comparison.difference.low, comparison.p) == (
        0,
        None,
        None,
        1.0,
    )
    assert (comparison.verdict, comparison.equal) == ("no evidence", "not shown")
    single = pair_of(audited(sheet(a="y", b="n")))
    assert (single.difference.value, single.difference.low, single.equal) == (-1, None, "not shown")


def test_flips_are_told_beside_those_of_a_yardstick_on_the_same_items() -> None:
    """12 of 15 flip where 2 of them do in the yardstick, and one item has no yardstick."""
    a = "y" * 16
    b = "n" * 6 + "y" * 3 + "n" * 6 + "n"
    c = "nn" + "y" * 13 + "."
    comparison = pair_of(audited(sheet(a=a, b=b, c=c)))
    (test,) = comparison.beside
    assert test.n == 15
    assert test.rate.value == pytest.approx(2 / 15)
    assert test.excess.value == pytest.approx(10 / 15)
    assert test.p == pytest.approx(mid_p(0, 10))
    assert test.verdict == "more flips"
    assert comparison.flips.rate.value == pytest.approx(13 / 16)


def test_fewer_flips_than_the_yardstick() -> None:
    (test,) = pair_of(audited(sheet(a="y" * 20, b="y" * 20, c="n" * 10 + "y" * 10))).beside
    assert test.verdict == "fewer flips"
    assert pair_of(audited(sheet(a="yn", b="yn", c="yn"))).beside[0].verdict == "no evidence"


def test_a_yardstick_of_one_variant_measures_pairs_that_have_it() -> None:
    of_b, of_z = (VariantPair("a", "c", "yardstick", variant) for variant in ("b", "z"))
    result = audited(sheet(a="yn", b="nn", c="yn"), pairs=(PAIR, of_b, of_z))
    assert [b.yardstick for b in pair_of(result).beside] == [of_b]


def test_a_sheet_without_a_variant_has_no_such_pair() -> None:
    result = audited(sheet(a="yn", b="nn"), sheet(who="z", a="yn", b="nn", c="ny"))
    assert [(c.answerer, c.pair) for c in result.compared] == [
        ("x", PAIR),
        ("z", PAIR),
        ("z", USUAL),
    ]
    assert pair_of(result).beside == ()


def test_holm_is_over_all_pairs_of_all_answerers() -> None:
    """Eight items that changed to one side have p .0039: enough alone, not among 20."""
    changed = sheet(who="x", a="y" * 8 + "n" * 20, b="n" * 28)
    unchanged = [sheet(who=f"{n}", a="yn" * 9, b="yn" * 9) for n in range(19)]
    alone = pair_of(audited(changed))
    assert (alone.p_holm, alone.verdict) == (alone.p, "differs")
    among = pair_of(audited(changed, *unchanged))
    assert among.p_holm == pytest.approx(20 * alone.p)
    assert among.verdict == "no evidence"


@pytest.mark.parametrize(
    ("losses", "ties", "equal"), [(0, 200, "kept"), (30, 170, "lost"), (9, 191, "not shown")]
)
def test_equality_is_shown_by_an_interval_alone(losses: int, ties: int, equal: str) -> None:
    half = "y" * (ties // 2) + "n" * (ties - ties // 2)
    comparison = pair_of(audited(sheet(a="y" * losses + half, b="n" * losses + half)))
    assert comparison.equal == equal


@pytest.mark.deep
def test_intervals_hold_the_truth() -> None:
    """Coverage of the rate, the paired difference and the flips less those of a yardstick."""
    rng = np.random.default_rng(5)
    held = np.zeros(3)
    rounds = 300
    for _ in range(rounds):
        a = rng.random(120) < 0.7
        b = np.where(rng.random(120) < 0.2, rng.random(120) < 0.5, a)
        c = np.where(rng.random(120) < 0.3, rng.random(120) < 0.5, a)
        texts = {
            v: "".join("y" if yes else "n" for yes in e)
            for v, e in zip("abc", (a, b, c), strict=True)
        }
        comparison = pair_of(audited(sheet(**texts)))
        figures = (comparison.first, comparison.difference, comparison.beside[0].excess)
        truths = (0.7, 0.2 * (0.5 - 0.7), 0.2 * 0.5 - 0.3 * 0.5)
        held += [f.low <= t <= f.high for f, t in zip(figures, truths, strict=True)]  # type: ignore[operator]
    assert held / rounds == pytest.approx(0.95, abs=0.035)


def test_people_are_compared_within_a_text_alone() -> None:
    answers = {"a": (("y", "y", "n"), ("y", "y", "y"), ("n", None, "y")), "b": ((None,) * 3,) * 3}
    readers = Readers("?", ("0", "1", "2"), answers, "y")
    first, second = audit_answers(Published((), (), (readers,))).readings
    assert first.rate.value == pytest.approx(6 / 8)
    assert first.disagreement.value == pytest.approx(3 / 7)  # pairs: 2 of 3, 0 of 3, 1 of 1
    assert first.disagreement.low is not None and first.disagreement.low > 0
    assert (second.n, second.rate.value) == (0, None)


@pytest.mark.skipif(not MEDPERTURB.is_file(), reason="the published table is not on this machine")
def test_the_published_table_flips_without_a_direction() -> None:
    result = audit_answers(read({"x": [MEDPERTURB]}))
    genders = [c for c in result.compared if c.pair.second == "woman"]
    assert len(genders) == 12
    assert max(c.flips.rate.value or 0 for c in genders) == 0.44
    for comparison in genders:
        changed = comparison.flips.gained + comparison.flips.lost
        even = comparison.flips.gained == comparison.flips.lost
        assert comparison.p == pytest.approx(
            1.0 if even else mid_p(comparison.flips.gained, changed)
        )
    assert {c.verdict for c in result.of_role("counterfactual")} == {"no evidence"}
