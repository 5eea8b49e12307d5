"""Choices: what is read, what a reply is worth, and what is measured of sets."""

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from environments.base import Failure, IncompleteSetError, Rollout, Score
from environments.choice import ChoiceEnvironment, ChoiceSettings
from environments.choice.environment import format_text, parse_choice
from environments.choice.metrics import ABSENT, UNREAD, ChoiceOutcome, gather, set_sums
from environments.replies import Unparseable
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.intervals import StatisticsSettings

CASES = [
    json.loads(line)
    for line in (files("environments.choice") / "cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_is_read(case: dict[str, Any]) -> None:
    choice = parse_choice(case["reply"], ("A", "B"), ("rest", "ice"))
    expected = Unparseable(case["reason"]) if case["choice"] is None else case["choice"]
    assert choice == expected


def test_labels_may_be_figures_and_one_may_begin_another() -> None:
    labels, texts = ("1", "10"), ("no", "yes")
    assert parse_choice("Answer: 10", labels, texts) == 1
    assert parse_choice("Answer: 1. No", labels, texts) == 0
    assert parse_choice("Answer: 1.0", labels, texts) == Unparseable(
        "the answer is none of the options"
    )
    assert "1, 10" in format_text(labels)


# --- scores --------------------------------------------------------------------------------------


def asked(gold: str | None = "A", **more: Any) -> dict[str, Any]:
    options = ["none", "some", "most"]
    return {"labels": list("ABC"), "options": options, "gold": gold, "variant": "x"} | more


def score(reply: str, metadata: dict[str, Any]) -> Score:
    environment = ChoiceEnvironment(ChoiceSettings())
    return environment.score([Rollout("p", "s", "test", "", reply, metadata)])[0]


def test_a_right_choice_a_wrong_one_and_none() -> None:
    values = [score(reply, asked()).value for reply in ("Answer: A", "Answer: B", "A")]
    assert values == [1.0, 0.5, 0.0]
    told = score("Answer: B", asked()).evidence
    assert told == {"gold": "A", "choice": {"answer": "B"}, "place": 1, "value": 0.0}


def test_without_a_right_answer_every_option_is_worth_the_same() -> None:
    values = {score(f"Answer: {label}", asked(None)).value for label in "ABC"}
    assert values == {0.5}


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ({}, "labels: Field required"),
        (asked("D"), "gold 'D' is no label"),
        (asked(labels=["A", "A", "B"]), "a label is there twice"),
        (asked(options=["one"]), "not as many"),
        (asked(variant=""), "variant: "),
    ],
)
def test_a_prompt_without_what_is_needed_is_refused(metadata: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=f"prompt 'p': .*{fault}"):
        score("Answer: A", metadata)


# --- sets ----------------------------------------------------------------------------------------


def rollouts_of(replies: dict[str, dict[str, str]], **metadata: Any) -> list[Rollout]:
    """Set -> variant -> its generations: a letter is an option, a dot cannot be read."""
    return [
        Rollout(f"{s}/{v}", s, "test", "", f"Answer: {letter}", asked(**metadata) | {"variant": v})
        for s, variants in replies.items()
        for v, letters in variants.items()
        for letter in letters
    ]


def measured(replies: dict[str, dict[str, str]], **metadata: Any) -> Any:
    rollouts = rollouts_of(replies, **metadata)
    environment = ChoiceEnvironment(ChoiceSettings())
    return environment.measure(rollouts, environment.score(rollouts))


def test_accuracy_its_gap_and_parse_rate_by_hand() -> None:
    measurement = measured({"1": {"m": "AAB", "w": "AB."}, "2": {"m": "AAA", "w": "BBB"}})
    told = measurement.point_estimates()
    assert told["accuracy"] == pytest.approx(6 / 12)  # the one that cannot be read is wrong
    assert told["accuracy_gap"] == pytest.approx(5 / 6 - 1 / 6)
    assert told["gap_within_sets"] == pytest.approx((1 / 3 + 1) / 2)
    assert told["parse_rate"] == pytest.approx(11 / 12)
    by = measurement.breakdowns["by_variant"]
    total = measurement.sums.sum(axis=0)
    assert by["w"]["accuracy"].at(total) == pytest.approx(1 / 6)
    assert by["w"]["parse_rate"].at(total) == pytest.approx(5 / 6)


def test_a_flip_is_of_the_usual_choice() -> None:
    """In set 1 it is A for both; in 2 it differs; in 3 nothing of one variant can be read."""
    replies = {
        "1": {"m": "AAB", "w": "ABA"},
        "2": {"m": "AAB", "w": "BBA"},
        "3": {"m": "AAA", "w": "..."},
    }
    measurement = measured(replies)
    assert measurement.point_estimates()["flip_rate"] == 0.5
    assert measurement.metrics["flip_rate"].outcomes.tolist() == [False, True, False]


def test_the_level_of_ordered_options_and_no_level_of_others() -> None:
    replies = {"1": {"m": "AB.", "w": "CCC"}}
    ordered = measured(replies, gold=None, ordered=True).point_estimates()
    assert ordered["level"] == pytest.approx((0 + 0.5 + 3) / 5)
    assert ordered["level_gap"] == pytest.approx(1 - 0.25)
    assert np.isnan(measured(replies, gold=None).point_estimates()["level"])


def test_order_does_not_matter_and_failures_are_no_replies() -> None:
    rollouts = rollouts_of({"1": {"m": "AB", "w": "BA"}, "2": {"m": "AA", "w": "BB"}})
    environment = ChoiceEnvironment(ChoiceSettings())
    scores = environment.score(rollouts)
    scores[0] = Score(None, error=Failure("server_error", "500"))
    one = environment.measure(rollouts, scores).point_estimates()
    other = environment.measure(rollouts[::-1], scores[::-1]).point_estimates()
    assert one == other
    assert one["parse_rate"] == 1.0 and one["accuracy"] == pytest.approx(3 / 7)


def test_questions_in_one_variant_have_nothing_that_could_differ() -> None:
    measurement = measured({"1": {"m": "AB"}, "2": {"m": "AA"}})
    assert measurement.point_estimates() == {"accuracy": 0.75, "parse_rate": 1.0}
    assert measurement.null_sums is None and measurement.breakdowns == {}


def test_a_set_without_a_variant_is_refused() -> None:
    with pytest.raises(IncompleteSetError, match="set '2' has no variant 'w'"):
        measured({"1": {"m": "A", "w": "A"}, "2": {"m": "A"}})


def test_variants_with_other_options_are_refused() -> None:
    rollouts = [*rollouts_of({"1": {"m": "A"}}), *rollouts_of({"1": {"w": "A"}}, gold="B")]
    environment = ChoiceEnvironment(ChoiceSettings())
    with pytest.raises(ValueError, match="set '1' differ in their options"):
        environment.measure(rollouts, environment.score(rollouts))


def outcome(choice: int | None) -> ChoiceOutcome:
    return ChoiceOutcome(choice=choice, gold=0, options=3, ordered=False)


def test_sums_are_those_of_a_plain_count() -> None:
    """Against a loop over every reply, in which nothing is an array."""
    rng = np.random.default_rng(2)
    rollouts, outcomes = [], []
    for s in range(20):
        for v in "xyz":
            for _ in range(4):
                rollouts.append(Rollout(f"{s}{v}", f"{s}", "test", "", "", {"variant": v}))
                code = int(rng.integers(-2, 3))
                outcomes.append(None if code == ABSENT else outcome(None if code < 0 else code))
    choices = gather(rollouts, outcomes)
    sums = set_sums(choices.codes, choices.worth)
    for s in range(20):
        usual, means = [], []
        for v, name in enumerate("xyz"):
            own = [
                o for r, o in zip(rollouts, outcomes, strict=True) if r.prompt_id == f"{s}{name}"
            ]
            there = [o for o in own if o is not None]
            read = [o.choice for o in there if o.choice is not None]
            expected = [sum(c == 0 for c in read), len(there), len(read), len(there)]
            assert sums[s, 4 * v : 4 * v + 4].tolist() == expected
            means.append(expected[0] / len(there) if there else None)
            usual.append(min(read, key=lambda c: (-read.count(c), c)) if read else None)
        gap = None if None in means else max(means) - min(means)
        assert sums[s, -3] == (gap is not None)
        assert sums[s, -4] == pytest.approx(gap or 0.0)
        known = None not in usual
        assert sums[s, -1] == known and sums[s, -2] == (known and len(set(usual)) > 1)


# --- noise ---------------------------------------------------------------------------------------


def drawn(chances: dict[str, float], generations: int, seed: int, sets: int = 40) -> Any:
    """Variant -> the chance of A, in every set."""
    rng = np.random.default_rng(seed)
    letters = {
        f"{s}": {
            v: "".join("A" if yes else "B" for yes in rng.random(generations) < chance)
            for v, chance in chances.items()
        }
        for s in range(sets)
    }
    return headline_figures(measured(letters), StatisticsSettings(400, 400))


def test_flips_by_noise_alone_are_at_their_floor() -> None:
    figures = drawn({"m": 0.6, "w": 0.6}, 4, seed=1)
    flips = figures["flip_rate"]
    assert flips["value"] > 0.2 and flips["p"] > 0.05
    assert flips["floor"] == pytest.approx(flips["value"], abs=0.15)


def test_a_real_difference_exceeds_its_floor() -> None:
    figures = drawn({"m": 0.9, "w": 0.2}, 4, seed=1)
    assert figures["accuracy_gap"]["p"] < 0.01 and figures["flip_rate"]["p"] < 0.01
    assert figures["accuracy_gap"]["low"] < 0.7 < figures["accuracy_gap"]["high"]


def test_effects_of_both_directions_are_seen_within_sets_alone() -> None:
    """As statements are, some of which are meant well and some not: no variant gains by it all."""
    letters = {
        f"{s}": {"m": "AAAA", "w": "CCCC"} if s % 2 else {"m": "CCCC", "w": "AAAA"}
        for s in range(20)
    }
    measurement = measured(letters, gold=None, ordered=True)
    figures = headline_figures(measurement, StatisticsSettings(400, 400))
    assert figures["level_gap"]["value"] == 0.0
    assert figures["gap_within_sets"]["value"] == 1.0 and figures["gap_within_sets"]["p"] < 0.01


def test_with_one_reply_flips_cannot_be_told_from_noise() -> None:
    """Which variant gave which reply does not change whether they differ."""
    flips = drawn({"m": 0.9, "w": 0.2}, 1, seed=1)["flip_rate"]
    assert flips["p"] == 1.0 and flips["floor"] == flips["value"]


@pytest.mark.deep
def test_the_test_of_a_gap_holds_its_level() -> None:
    levels = [
        drawn({"m": 0.5, "w": 0.5}, 2, seed=s, sets=20)["accuracy_gap"]["p"] for s in range(60)
    ]
    assert np.mean(np.array(levels) < 0.05) <= 0.1


def test_what_cannot_be_read_has_its_own_codes() -> None:
    assert UNREAD == -1 and ABSENT == -2  # they index the last two columns of what codes are worth
