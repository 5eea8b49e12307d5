"""Which counterfactual sets are shown, and what their cells say."""

from collections.abc import Sequence

import pytest

from equipoise.report.examples import (
    choose_sets,
    example_sets,
    failures,
    unparseable,
)
from equipoise.report.run_files import Reply, RunFiles

RACES = ("White", "Black")


def reply(
    set_id: str, race: str, invasiveness: float | None, *, case: str = "", error: str | None = None
) -> Reply:
    evidence = {"unparseable": "no JSON"}
    if invasiveness is not None:
        fields = {"medication": "opioid", "surgical_referral": invasiveness > 5, "rationale": "why"}
        evidence = {"decision": fields, "invasiveness": invasiveness}
    metadata = {"race": race, "case": case or set_id, "age": "old"}
    return Reply(set_id, metadata, "the prompt", f"reply {invasiveness}", error, evidence)


def run(before: Sequence[Reply], after: Sequence[Reply] = ()) -> RunFiles:
    evaluation = {"by_race": {race: {} for race in RACES}}
    stages = {"before": before, "after": after} if after else {"before": before}
    return RunFiles(
        name="run",
        provenance={},
        config="",
        evaluations=dict.fromkeys(stages, evaluation),
        comparison={},
        history={},
        replies={stage: tuple(replies) for stage, replies in stages.items()},
    )


def pair(set_id: str, white: float | None, black: float | None, case: str = "") -> list[Reply]:
    return [reply(set_id, "White", white, case=case), reply(set_id, "Black", black, case=case)]


def ids(replies: Sequence[Reply]) -> list[str]:
    sets: dict[str, dict[str, list[Reply]]] = {}
    for found in replies:
        sets.setdefault(found.set_id, {}).setdefault(found.metadata["race"], []).append(found)
    return choose_sets(sets)


def test_sets_furthest_apart_are_chosen_and_equal_ones_by_name() -> None:
    sets = [*pair("d", 5, 4), *pair("c", 1, 4), *pair("b", 4, 1), *pair("a", 9, 1)]
    assert ids(sets) == ["a", "b", "c"]


def test_one_set_is_chosen_of_each_case() -> None:
    sets = [*pair("a", 9, 1, "x"), *pair("b", 9, 2, "x"), *pair("c", 2, 1, "y")]
    assert ids(sets) == ["a", "c"]


def test_set_whose_means_are_not_known_comes_last() -> None:
    assert ids([*pair("a", None, None), *pair("b", 1, 1)]) == ["b", "a"]


def test_cells_hold_the_first_reply_and_all_invasiveness() -> None:
    replies = [*pair("a", 7, 2), *pair("a", None, 4)]
    (example,) = example_sets(run(replies, pair("a", 3, 3)))
    (before, variants), (after, _) = example.rows
    assert (before, after) == ("Before training", "After training")
    assert example.races == RACES
    assert example.patient == "age old"
    assert [v.distribution for v in variants] == ["7,\u00d7", "2,4"]
    assert [v.mean for v in variants] == ["7.00", "3.00"]
    assert [(f.name, f.value, f.differs) for f in variants[0].fields] == [
        ("medication", "opioid", False),
        ("surgical referral", "yes", True),
    ]
    assert variants[0].rationale == "why"
    assert not variants[0].reply


def test_first_reply_that_cannot_be_read_is_shown_as_it_is() -> None:
    (example,) = example_sets(run(pair("a", None, 2)))
    variant = example.rows[0][1][0]
    assert variant.problem == "could not be read: no JSON"
    assert variant.reply == "reply None"


def test_race_without_replies_leaves_its_cell_empty() -> None:
    (example,) = example_sets(run([reply("a", "White", 3)]))
    assert [v.problem for v in example.rows[0][1]] == ["", "no reply"]


def test_task_without_races_has_no_examples() -> None:
    assert example_sets(run([Reply("a", {}, "", "", None, {})])) == ()


@pytest.mark.parametrize(("find", "text"), [(failures, "timeout"), (unparseable, "no JSON")])
def test_reasons_are_counted_most_frequent_first(find: object, text: str) -> None:
    before = [reply("a", "White", None, error="timeout"), reply("a", "White", 3)]
    after = [reply("b", "White", None, error="timeout"), reply("b", "White", 3, error="other")]
    reasons = find(run(before, after))
    assert (reasons[0].text, reasons[0].before, reasons[0].after) == (text, 1, 1)
    assert reasons[0].reply == "reply None"
