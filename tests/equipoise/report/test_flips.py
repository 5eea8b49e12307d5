"""Sets whose answer changes with the attribute: which are shown, and that nothing in them acts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from environments.presentation import Presentation, SetView
from equipoise.report import sets as module
from equipoise.report.report import write_report
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.sets import Flips, changed_sets
from tests.equipoise.report.conftest import write_finished, write_json
from tests.equipoise.report.test_report import SCRIPT, Page, edit_rollouts
from tests.equipoise.report.test_sets import pair, run

SCORED = SetView("race", "invasiveness", "decision", "rationale", scored=("surgical_referral",))


def audited(replies: Sequence[Reply], view: SetView = SCORED) -> RunFiles:
    found = run(replies, said=Presentation(sets=view))
    return replace(found, provenance={"audit": {}})


def flips(found: RunFiles) -> Flips:
    (changed,) = changed_sets(found)
    return changed


def test_sets_that_flip_are_shown_the_worst_first_with_both_texts_and_answers() -> None:
    group = flips(audited([*pair("a", 7, 4), *pair("b", 9, 2), *pair("c", 2, 1)]))
    assert group.summary == "2 of 2 sets that flip, of 3 in all"
    assert [flip.title for flip in group.flips] == ["b: White and Black", "a: White and Black"]
    assert group.flips[0].facts == "Mean invasiveness 9.00 and 2.00"
    white, black = group.flips[0].sides
    assert (white.variant, white.text, black.variant) == ("White", "the prompt", "Black")
    (yes,), (no,) = white.answers, black.answers
    assert (yes.name, yes.value, no.value, yes.differs) == ("surgical referral", "yes", "no", True)


def test_the_usual_answer_is_that_of_most_replies_and_of_equals_the_lower() -> None:
    most = [*pair("a", 9, 9), *pair("a", 9, 8), *pair("a", 1, 1)]
    assert changed_sets(audited(most)) == ()
    equal = [*pair("a", 9, 1), *pair("a", 1, 1)]
    assert changed_sets(audited(equal)) == ()


def test_every_answer_is_counted_the_usual_one_first() -> None:
    replies = [*pair("a", 1, 1), *pair("a", 9, 2), *pair("a", 8, None)]
    (flip,) = flips(audited(replies)).flips
    (white,), (black,) = (side.answers for side in flip.sides)
    assert (white.value, black.value, white.differs) == ("yes (2), no (1)", "no (2)", True)


def test_a_set_with_an_unreadable_variant_has_nothing_to_compare() -> None:
    assert changed_sets(audited(pair("a", 9, None))) == ()


def test_beyond_the_stated_number_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SETS", 2)
    group = flips(audited([each for n in "abc" for each in pair(n, 9, 1)]))
    assert len(group.flips) == 2 and group.summary.startswith("2 of 3 sets that flip")


def test_a_run_that_trains_and_a_task_without_sets_have_none() -> None:
    assert changed_sets(run(pair("a", 9, 1))) == ()
    assert changed_sets(replace(audited(pair("a", 9, 1)), presentation=Presentation())) == ()


def test_hostile_texts_are_text_on_the_page(tmp_path: Path) -> None:
    folder = write_finished(tmp_path / "run")
    write_json(folder / "provenance.json", {"audit": {}})
    edit_rollouts(folder, lambda row: row.update(prompt=f"{SCRIPT}\u202e {row['prompt_id']}"))
    shown = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "Sets whose answer flips" in shown.headings
    assert f"{SCRIPT}\ufffd" in shown.text and shown.has_no_script_of_others
