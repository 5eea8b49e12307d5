"""Which patients are shown in all variants, and what their cells say."""

from dataclasses import replace

from environments.base import Failure, Rollout, Score
from environments.presentation import Presentation, SetView, Words
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.sets import by_set_and_variant, furthest_set, set_sections

RACES = ("White", "Black")
VIEW = SetView(variant="race", figure="invasiveness", fields="decision", text="rationale")
SAID = Presentation(words={"case": Words("clinical case")}, one_of_each="case", sets=VIEW)


def reply(set_id, race, invasiveness, *, case="", error=None):
    evidence = {"unparseable": "no JSON"}
    if invasiveness is not None:
        fields = {"medication": "opioid", "surgical_referral": invasiveness > 5, "rationale": "why"}
        evidence = {"decision": fields, "invasiveness": invasiveness}
    metadata = {"race": race, "case": case or set_id, "age": "old"}
    rollout = Rollout(set_id, set_id, "test", "the prompt", f"reply {invasiveness}", metadata)
    failure = Failure(error, f"{error} of x") if error else None
    return Reply(rollout, Score(None if error else 1.0, {}, failure, evidence))


def run(before, after=(), said=SAID):
    evaluation = {"by_race": {race: {} for race in RACES}}
    stages = {"before": before, "after": after} if after else {"before": before}
    return RunFiles(
        evaluations=dict.fromkeys(stages, evaluation),
        replies={stage: tuple(replies) for stage, replies in stages.items()},
        presentation=said,
    )


def shown(found):
    (section,) = set_sections(found)
    return section.example


def pair(set_id, white, black, case=""):
    return [reply(set_id, "White", white, case=case), reply(set_id, "Black", black, case=case)]


def furthest(replies):
    return furthest_set(by_set_and_variant(replies, VIEW), VIEW)


def test_the_set_furthest_apart_is_chosen_and_of_equal_ones_the_first_by_name():
    sets = [*pair("d", 5, 4), *pair("c", 1, 4), *pair("b", 9, 1), *pair("a", 1, 9)]
    assert furthest(sets) == "a"
    assert furthest([*pair("a", None, None), *pair("b", 1, 1)]) == "b", "unknown ones last"


def test_cells_hold_the_first_reply_and_all_invasiveness():
    replies = [*pair("a", 7, 2), *pair("a", None, 4)]
    example = shown(run(replies, pair("a", 3, 4)))
    (before, variants), (after, _) = example.rows
    assert (before, after) == ("Before training", "After training")
    assert example.variants == RACES
    assert example.shared == "age old"
    view = replace(VIEW, patient=("race",))
    example = shown(run(replies, said=replace(SAID, sets=view)))
    assert example.shared == "", "the age does not describe the patient, and race is not shared"
    summaries = ["mean 7.00; 1 of 2 replies, 2 to 7", "mean 3.00; 2 of 2 replies, 2 to 7"]
    assert [v.summary for v in variants] == summaries
    assert [v.bars for v in variants] == [(0, 0, 0, 0, 0, 1), (1, 0, 1, 0, 0, 0)]
    assert [(f.name, f.value, f.differs) for f in variants[0].fields] == [
        ("medication", "opioid", False),
        ("surgical referral", "yes", True),
    ]
    assert variants[0].text == "why"
    assert variants[0].figure == "7"
    assert not variants[0].reply


def test_a_reply_that_cannot_be_read_is_shown_as_it_is_and_one_that_is_not_there_as_none():
    example = shown(run(pair("a", None, 2)))
    variant = example.rows[0][1][0]
    assert (variant.problem, variant.reply) == ("could not be read: no JSON", "reply None")
    example = shown(run([reply("a", "White", 3)]))
    assert [v.problem for v in example.rows[0][1]] == ["", "no reply"]


def test_without_sets_and_with_a_single_variant_there_is_no_example():
    said = Presentation(sets=SetView("part", "invasiveness", "decision"))
    rollouts = [replace(each.rollout, metadata={"part": "one"}) for each in pair("a", 1, 2)]
    alone = [Reply(rollout, Score(1.0)) for rollout in rollouts]
    assert set_sections(run(alone, said=said)) == ()
    assert set_sections(run([Reply(Rollout("a", "a", "test", "", ""), Score(1.0))])) == ()
    assert set_sections(run(pair("a", 1, 2), said=Presentation())) == ()
