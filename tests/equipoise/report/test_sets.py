"""Which counterfactual sets are shown, what their cells say, and reasons that are counted."""

from collections.abc import Sequence
from dataclasses import replace

from environments.presentation import Presentation, SetView, Words
from equipoise.report.replies import failures
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.sets import ExampleSet, choose_sets, set_sections

RACES = ("White", "Black")
VIEW = SetView(variant="race", figure="invasiveness", fields="decision", text="rationale")
SAID = Presentation(words={"case": Words("clinical case")}, one_of_each="case", sets=VIEW)


def reply(
    set_id: str, race: str, invasiveness: float | None, *, case: str = "", error: str | None = None
) -> Reply:
    evidence = {"unparseable": "no JSON"}
    if invasiveness is not None:
        fields = {"medication": "opioid", "surgical_referral": invasiveness > 5, "rationale": "why"}
        evidence = {"decision": fields, "invasiveness": invasiveness}
    metadata = {"race": race, "case": case or set_id, "age": "old"}
    text, kind = error and f"{error} of x", error or ""
    reply = f"reply {invasiveness}"
    return Reply(set_id, metadata, "the prompt", reply, text, evidence, failure_kind=kind)


def run(
    before: Sequence[Reply], after: Sequence[Reply] = (), said: Presentation = SAID
) -> RunFiles:
    evaluation = {"by_race": {race: {} for race in RACES}}
    stages = {"before": before, "after": after} if after else {"before": before}
    return RunFiles(
        evaluations=dict.fromkeys(stages, evaluation),
        replies={stage: tuple(replies) for stage, replies in stages.items()},
        presentation=said,
    )


def shown(found: RunFiles) -> tuple[ExampleSet, ...]:
    return tuple(example for section in set_sections(found) for example in section.sets)


def pair(set_id: str, white: float | None, black: float | None, case: str = "") -> list[Reply]:
    return [reply(set_id, "White", white, case=case), reply(set_id, "Black", black, case=case)]


def ids(replies: Sequence[Reply]) -> list[str]:
    sets: dict[str, dict[str, list[Reply]]] = {}
    for found in replies:
        sets.setdefault(found.set_id, {}).setdefault(found.metadata["race"], []).append(found)
    return choose_sets(sets, VIEW, "case")


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
    (example,) = shown(run(replies, pair("a", 3, 3)))
    (before, variants), (after, _) = example.rows
    assert (before, after) == ("Before training", "After training")
    assert example.variants == RACES
    assert example.shared == "age old"
    assert [v.distribution for v in variants] == ["7, \u00d7", "2, 4"]
    assert [v.mean for v in variants] == ["7.00", "3.00"]
    assert [(f.name, f.value, f.differs) for f in variants[0].fields] == [
        ("medication", "opioid", False),
        ("surgical referral", "yes", True),
    ]
    assert variants[0].text == "why"
    assert variants[0].figure == "7"
    assert not variants[0].reply


def test_first_reply_that_cannot_be_read_is_shown_as_it_is() -> None:
    (example,) = shown(run(pair("a", None, 2)))
    variant = example.rows[0][1][0]
    assert variant.problem == "could not be read: no JSON"
    assert variant.reply == "reply None"


def test_race_without_replies_leaves_its_cell_empty() -> None:
    (example,) = shown(run([reply("a", "White", 3)]))
    assert [v.problem for v in example.rows[0][1]] == ["", "no reply"]


def test_replies_without_variants_are_no_example() -> None:
    assert set_sections(run([Reply("a", {}, "", "", None, {})])) == ()


def test_a_single_variant_is_no_example() -> None:
    said = Presentation(sets=SetView("part", "invasiveness", "decision"))
    alone = [replace(each, metadata={"part": "one"}) for each in pair("a", 1, 2)]
    assert set_sections(run(alone, said=said)) == ()


def test_a_task_without_sets_has_no_examples() -> None:
    assert set_sections(run(pair("a", 1, 2), said=Presentation())) == ()


def test_the_rule_is_told_in_the_words_of_the_task() -> None:
    (examples,) = set_sections(run(pair("a", 1, 2)))
    assert examples.note.startswith(
        "Of each clinical case the set whose race means of invasiveness"
    )
    assert "the invasiveness of each" in examples.legend


def test_reasons_are_counted_most_frequent_first() -> None:
    before = [reply("a", "White", None, error="rate_limit"), reply("a", "White", 3)]
    after = [reply("b", "White", None, error="rate_limit"), reply("b", "White", 3, error="other")]
    tables = failures(run(before, after))
    assert [title for title, _ in tables] == [
        "Replies that could not be scored",
        "Replies that could not be read",
    ]
    rows = [[cell.text for cell in table.rows[0]] for _, table in tables]
    assert rows == [["Rate limit", "1", "1", "reply None"], ["no JSON", "1", "1", "reply None"]]
    assert [table.rows[0][0].note for _, table in tables] == ["rate_limit of x", ""]
    assert failures(run([reply("a", "White", 3)])) == ()
