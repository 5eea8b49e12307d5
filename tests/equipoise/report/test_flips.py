"""Sets whose answer changes with the attribute: which are shown, and that nothing in them acts."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from environments.base import Rollout
from environments.choice import ChoiceEnvironment, ChoiceSettings
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
    (group,) = flips(audited([*pair("a", 7, 4), *pair("b", 9, 2), *pair("c", 2, 1)])).groups
    assert group.title == "2 of 2 sets that flip, of 3 in all"
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
    ((flip,),) = (group.flips for group in flips(audited(replies)).groups)
    (white,), (black,) = (side.answers for side in flip.sides)
    assert (white.value, black.value, white.differs) == ("yes (2), no (1)", "no (2)", True)


def chosen(letters: Sequence[Sequence[str]], gold: str | None) -> tuple[RunFiles, float]:
    """An audited run of choices, set by set and variant by variant, and its flip rate."""
    environment = ChoiceEnvironment(ChoiceSettings())
    asked = {"labels": list("ABC"), "options": ["x", "y", "z"], "gold": gold, "ordered": not gold}
    rollouts = [
        Rollout(f"{s}/{v}", f"{s}", "test", f"{s} {v}", f"Answer: {a}", {**asked, "variant": v})
        for s, variants in enumerate(letters)
        for v, answers in zip(("man", "woman"), variants, strict=True)
        for a in answers
    ]
    scores = environment.score(rollouts)
    replies = [
        Reply(r.set_id, r.metadata, r.prompt, r.completion, None, s.evidence, r.prompt_id)
        for r, s in zip(rollouts, scores, strict=True)
    ]
    found = replace(run(replies, said=environment.presentation), provenance={"audit": {}})
    return found, environment.measure(rollouts, scores).point_estimates()["flip_rate"]


@pytest.mark.parametrize("gold", ["A", "B", "C", None])
def test_choices_flip_as_often_as_their_flip_rate_says(gold: str | None) -> None:
    """Four replies, some of them unreadable, have ties, which both must resolve alike."""
    rng = random.Random(0)
    letters = [["".join(rng.choices("ABC.", k=4)) for _ in range(2)] for _ in range(60)]
    known = sum(all(set(answers) != {"."} for answers in variants) for variants in letters)
    found, rate = chosen(letters, gold)
    assert flips(found).groups[0].title.startswith(f"20 of {round(rate * known)} sets that flip")


def test_a_choice_that_flips_opens_to_both_texts_and_all_answers() -> None:
    found, _ = chosen([["AAAB", "BBBB"], ["AAAA", "AAAB"], ["AAAA", "BBBB"]], "A")
    (group,) = flips(found).groups
    assert [flip.title for flip in group.flips] == ["2: man and woman", "0: man and woman"]
    man, woman = group.flips[1].sides
    assert (man.text, woman.text) == ("0 man", "0 woman")
    assert (man.answers[0].value, woman.answers[0].value) == ("A (3), B (1)", "B (4)")
    assert man.answers[0].differs and "Mean value of the choice" in group.flips[1].facts


def test_options_without_an_order_have_no_mean() -> None:
    found, _ = chosen([["AA", "BB"]], "A")
    without = [replace(r, evidence={**r.evidence, "value": None}) for r in found.replies["before"]]
    ((flip,),) = (g.flips for g in flips(replace(found, replies={"before": tuple(without)})).groups)
    assert flip.facts == ""


def test_a_set_with_an_unreadable_variant_has_nothing_to_compare() -> None:
    assert changed_sets(audited(pair("a", 9, None))) == ()


def test_beyond_the_stated_number_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SETS", 2)
    (group,) = flips(audited([each for n in "abc" for each in pair(n, 9, 1)])).groups
    assert len(group.flips) == 2 and group.title.startswith("2 of 3 sets that flip")


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
