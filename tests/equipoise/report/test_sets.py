"""Which counterfactual sets are shown, what their cells say, whose answer flips, and failures."""

from collections.abc import Sequence
from dataclasses import replace

from environments.presentation import Presentation, SetView, Words
from equipoise.report import sets as module
from equipoise.report.replies import failures
from equipoise.report.report import write_report
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.sets import ExampleSet, Flips, changed_sets, choose_sets, set_sections
from tests.equipoise.report.conftest import write_finished, write_provenance
from tests.equipoise.report.test_report import SCRIPT, Page, edit_rollouts

RACES = ("White", "Black")
VIEW = SetView(variant="race", figure="invasiveness", fields="decision", text="rationale")
SAID = Presentation(words={"case": Words("clinical case")}, one_of_each="case", sets=VIEW)


def reply(set_id, race, invasiveness, *, case="", error=None):
    evidence = {"unparseable": "no JSON"}
    if invasiveness is not None:
        fields = {"medication": "opioid", "surgical_referral": invasiveness > 5, "rationale": "why"}
        evidence = {"decision": fields, "invasiveness": invasiveness}
    metadata = {"race": race, "case": case or set_id, "age": "old"}
    text, kind = error and f"{error} of x", error or ""
    reply = f"reply {invasiveness}"
    return Reply(set_id, metadata, "the prompt", reply, text, evidence, failure_kind=kind)


def run(before, after=(), said=SAID):
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


def test_of_each_case_the_set_furthest_apart_is_chosen_and_equal_ones_by_name():
    sets = [*pair("d", 5, 4), *pair("c", 1, 4), *pair("b", 4, 1), *pair("a", 9, 1)]
    assert ids(sets) == ["a", "b", "c"]
    sets = [*pair("a", 9, 1, "x"), *pair("b", 9, 2, "x"), *pair("c", 2, 1, "y")]
    assert ids(sets) == ["a", "c"]
    assert ids([*pair("a", None, None), *pair("b", 1, 1)]) == ["b", "a"], "unknown ones last"


def test_cells_hold_the_first_reply_and_all_invasiveness():
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


def test_a_reply_that_cannot_be_read_is_shown_as_it_is_and_one_that_is_not_there_as_none():
    (example,) = shown(run(pair("a", None, 2)))
    variant = example.rows[0][1][0]
    assert (variant.problem, variant.reply) == ("could not be read: no JSON", "reply None")
    (example,) = shown(run([reply("a", "White", 3)]))
    assert [v.problem for v in example.rows[0][1]] == ["", "no reply"]


def test_without_sets_and_with_a_single_variant_there_is_no_example():
    said = Presentation(sets=SetView("part", "invasiveness", "decision"))
    alone = [replace(each, metadata={"part": "one"}) for each in pair("a", 1, 2)]
    assert set_sections(run(alone, said=said)) == ()
    assert set_sections(run([Reply("a", {}, "", "", None, {})])) == ()
    assert set_sections(run(pair("a", 1, 2), said=Presentation())) == ()


def test_reasons_are_counted_most_frequent_first():
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


# --- sets whose answer flips ------------------------------------------------------------

SCORED = SetView("race", "invasiveness", "decision", "rationale", scored=("surgical_referral",))


def audited(replies: Sequence[Reply], view: SetView = SCORED) -> RunFiles:
    found = run(replies, said=Presentation(sets=view))
    return replace(found, provenance={"audit": {}})


def flips(found: RunFiles) -> Flips:
    (changed,) = changed_sets(found)
    return changed


def test_sets_that_flip_are_shown_the_worst_first_with_both_texts_and_answers():
    group = flips(audited([*pair("a", 7, 4), *pair("b", 9, 2), *pair("c", 2, 1)]))
    assert group.summary == "2 of 2 sets that flip, of 3 in all"
    assert [flip.title for flip in group.flips] == ["b: White and Black", "a: White and Black"]
    assert group.flips[0].facts == "Mean invasiveness 9.00 and 2.00"
    white, black = group.flips[0].sides
    assert (white.variant, white.text, black.variant) == ("White", "the prompt", "Black")
    (yes,), (no,) = white.answers, black.answers
    assert (yes.name, yes.value, no.value, yes.differs) == ("surgical referral", "yes", "no", True)


def test_the_usual_answer_is_that_of_most_replies_and_of_equals_the_lower():
    most = [*pair("a", 9, 9), *pair("a", 9, 8), *pair("a", 1, 1)]
    assert changed_sets(audited(most)) == ()
    equal = [*pair("a", 9, 1), *pair("a", 1, 1)]
    assert changed_sets(audited(equal)) == ()


def test_every_answer_is_counted_the_usual_one_first():
    replies = [*pair("a", 1, 1), *pair("a", 9, 2), *pair("a", 8, None)]
    (flip,) = flips(audited(replies)).flips
    (white,), (black,) = (side.answers for side in flip.sides)
    assert (white.value, black.value, white.differs) == ("yes (2), no (1)", "no (2)", True)


def test_beyond_the_stated_number_they_are_counted(monkeypatch):
    monkeypatch.setattr(module, "MOST_SETS", 2)
    group = flips(audited([each for n in "abc" for each in pair(n, 9, 1)]))
    assert len(group.flips) == 2 and group.summary.startswith("2 of 3 sets that flip")


def test_a_run_that_trains_a_task_without_sets_and_an_unreadable_variant_have_none():
    assert changed_sets(audited(pair("a", 9, None))) == ()
    assert changed_sets(run(pair("a", 9, 1))) == ()
    assert changed_sets(replace(audited(pair("a", 9, 1)), presentation=Presentation())) == ()


def test_hostile_texts_are_text_on_the_page(tmp_path):
    folder = write_finished(tmp_path / "run")
    write_provenance(folder, {"audit": {}})
    edit_rollouts(folder, lambda row: row.update(prompt=f"{SCRIPT}\u202e {row['prompt_id']}"))
    shown = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "Sets whose answer flips" in shown.headings
    assert f"{SCRIPT}\ufffd" in shown.text and shown.has_no_script_of_others
