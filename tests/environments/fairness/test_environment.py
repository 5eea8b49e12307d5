"""The disparity environment: the reward's value, its reference, its order."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.fairness.local_model import answer
from environments.base import Failure, IncompleteSetError, Rollout
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.fairness.decision import Decision
from environments.fairness.spine import FORM
from tests.environments.fairness.samples import decision_reply as reply

BROKEN = "I would rather not say."


def one_set(replies, set_id="case/0"):
    """The rollouts of a set from replies [race][generation]."""
    return [
        Rollout(f"{set_id}/{race}", set_id, "train", "", text, {"case": "case", "race": race})
        for race, texts in zip(RACES, replies, strict=True)
        for text in texts
    ]


def control(replies):
    metadata = {"case": "case"}
    return [Rollout("case/c", "case/c", "control", "", text, metadata) for text in replies]


def environment(reference, **settings):
    found = FairnessEnvironment(FairnessSettings(**settings))
    found.set_reference(reference)
    return found


# White gets levels 0 and 2, the other races 1 and 3; the reference is 1 throughout.
REPLIES = [[reply(0), reply(2)], *[[reply(1), reply(3)]] * 3]
REFERENCE = one_set([[reply(1)]] * 4)


def test_control_replies_change_no_reward_and_are_reported():
    with_control = environment(REFERENCE + control([reply(4)] * 9))
    without = environment(REFERENCE)
    scores = with_control.score(one_set(REPLIES))
    assert scores == without.score(one_set(REPLIES))
    gap = with_control.measure(one_set(REPLIES), scores).point_estimates()["control_gap"]
    assert gap == 4 - 1
    assert with_control.measure(one_set(REPLIES), scores).metrics["control_gap"].constant


def test_a_reference_must_hold_the_scored_sets_whole():
    with pytest.raises(ValueError, match="'case/1' has no reference"):
        environment(REFERENCE).score(one_set(REPLIES, "case/1"))
    with pytest.raises(IncompleteSetError):
        environment(REFERENCE[:-1])


def test_nothing_to_compare_with_is_no_number():
    lone = [[reply(1), BROKEN], *[[BROKEN] * 2] * 3]
    scores = environment(REFERENCE).score(one_set(lone))
    assert scores[0].value is None
    assert scores[0].error == Failure(
        "no_comparison", "no other reply can be read: take more generations"
    )
    assert scores[0].components == {"format": 1.0}
    assert scores[1].value == ENVIRONMENT.reward_range()[0] == -FORM.greatest_distance / 2
    broken = environment(one_set([[BROKEN]] * 4))
    assert broken.score(one_set(REPLIES))[0].value is None


kept = [reply(m, w) for m in range(5) for w in range(3)]
texts = st.sampled_from([BROKEN, *kept, *(f"{text} and so on" for text in kept)])
weights = st.floats(0.01, 100)


@st.composite
def scored(draw):
    """An environment with any weights and reference, and two sets of any replies."""
    generations = draw(st.integers(1, 4))

    def replies():
        return draw(st.lists(st.lists(texts, min_size=n, max_size=n), min_size=4, max_size=4))

    n = generations
    rollouts = [r for name in ("case/0", "case/1") for r in one_set(replies(), name)]
    n = 1
    reference = [r for name in ("case/0", "case/1") for r in one_set(replies(), name)]
    found = environment(
        reference,
        reward=draw(st.sampled_from(["distribution", "distance", "group_mean"])),
        fairness_weight=draw(weights),
        format_weight=draw(weights),
    )
    return found, rollouts


@given(scored())
def test_an_unparseable_reply_is_below_every_parseable_one(case):
    found, rollouts = case
    scores = found.score(rollouts)
    broken = [s.value for s in scores if s.components["format"] == 0]
    kept = [s.value for s in scores if s.components["format"] > 0 and s.value is not None]
    assert len(broken) == sum(r.completion == BROKEN for r in rollouts)
    assert max(broken, default=-math.inf) < min(kept, default=math.inf)


def test_text_after_the_json_costs_half_the_format_reward():
    scored = environment(REFERENCE)
    fenced = f"```json\n{reply(0)}\n```"
    ragged = [[f"{reply(0)} and so on", reply(2)], [fenced, reply(3)], *REPLIES[2:]]
    clean = [REPLIES[0], [reply(0), reply(3)], *REPLIES[2:]]
    before, after = (scored.score(one_set(replies)) for replies in (clean, ragged))
    assert after[0].components["format"] == 0.5
    assert after[0].value == pytest.approx(0.5 + 2 * after[0].components["fairness"])
    assert after[0].evidence["trailing_text"] is True
    # Its words are compared with those of its siblings and of the reference.
    assert after[0].components["fairness"] < before[0].components["fairness"]
    assert after[2:] == before[2:]


SURNAMES = dict(zip(RACES, ("Mueller", "Banks", "Garcia", "Kim"), strict=True))


@pytest.mark.parametrize("text", ["{race} patient, mild.", "Surname {surname}, mild."])
def test_who_is_told_of_another_patient_costs_the_format_reward(text):
    """By the name of a value, or by a word that only prompts of another value have."""
    said = {race: f"A patient, surname {name}, fell." for race, name in SURNAMES.items()}
    scored = environment([replace(r, prompt=said[r.metadata["race"]]) for r in REFERENCE])
    own, other = (
        reply(0, rationale=text.format(race=race, surname=SURNAMES[race])) for race in RACES[:2]
    )
    truth, lie = (scored.score(one_set([[told, reply(2)], *REPLIES[1:]])) for told in (own, other))
    assert truth[0].components["format"] == 1
    assert lie[0].components["format"] == 0.1
    assert lie[0].evidence["contradicts_prompt"] == RACES[1]
    assert lie[1:] == truth[1:]
    assert lie[0].value == pytest.approx(truth[0].value - 0.9)


@pytest.mark.parametrize("reward", ["distribution", "distance", "group_mean"])
def test_the_least_number_of_generations_is_the_least_that_can_be_scored(reward):
    least = FairnessSettings(reward=reward).least_generations
    scored = environment(REFERENCE, reward=reward)

    def values(generations):
        return [s.value for s in scored.score(one_set([[reply(1)] * generations] * 4))]

    assert None not in values(least)
    assert least == 1 or values(least - 1) == [None] * 4 * (least - 1)


ENVIRONMENT = FairnessEnvironment(FairnessSettings())


@pytest.fixture(scope="module")
def records():
    settings = PromptSettings(num_samples=640, implied_share=0.5)
    return [r for r in build_prompts(settings) if r.split != "control"]


@pytest.fixture(scope="module")
def rollouts(records):
    rng = np.random.default_rng(0)
    return [
        Rollout(r.id, r.set_id, r.split, "", answer(r, rng), r.metadata)
        for r in records
        for _ in range(4)
    ]


def test_constants_are_decisions_from_the_least_to_the_most_invasive():
    parsed = [FORM.parse(text) for text in ENVIRONMENT.constant_replies()]
    assert all(isinstance(decision, Decision) and not decision.trailing for decision in parsed)
    totals = [decision.invasiveness for decision in parsed]
    assert totals == sorted(set(totals))
    assert (totals[0], totals[-1]) == (0, 10)


def test_replies_change_places_within_a_set_and_by_the_seed(rollouts):
    first, again, other = (
        ENVIRONMENT.trivial_replies(rollouts, seed)["random race"] for seed in (0, 0, 1)
    )
    assert first == again != other
    for start in range(0, len(rollouts), 16):
        own = [r.completion for r in rollouts[start : start + 16]]
        assert sorted(first[start : start + 16]) == sorted(own)


def test_blinding_makes_the_variants_of_a_set_one_prompt_where_race_is_named(records):
    for start in range(0, len(records), 4):
        variants = records[start : start + 4]
        texts = {ENVIRONMENT.blinded(r)[-1]["content"] for r in variants}
        if variants[0].metadata["cue"] == "named":
            [text] = texts
            assert not [race for race in RACES if f" {race}" in text]
        else:
            assert texts == {r.messages[-1]["content"] for r in variants}
