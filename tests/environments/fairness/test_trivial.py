"""Ways to decide without skill: constants, a race drawn at random, prompts without race."""

import numpy as np
import pytest

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.fairness.local_model import answer
from environments.base import PromptRecord, Rollout
from environments.contract import Environment
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.fairness.decision import Decision
from environments.fairness.environment import value_drawn_at_random
from environments.fairness.presentation import presentation_of
from environments.fairness.spine import FORM, SPINE

ENVIRONMENT = FairnessEnvironment(FairnessSettings())


@pytest.fixture(scope="module")
def records() -> list[PromptRecord]:
    settings = PromptSettings(num_samples=640, implied_share=0.5)
    return [r for r in build_prompts(settings) if r.split != "control"]


@pytest.fixture(scope="module")
def rollouts(records: list[PromptRecord]) -> list[Rollout]:
    rng = np.random.default_rng(0)
    return [
        Rollout(r.id, r.set_id, r.split, "", answer(r.metadata, rng), r.metadata)
        for r in records
        for _ in range(4)
    ]


def ratio(rollouts: list[Rollout], completions: list[str]) -> dict[str, float]:
    """The disparity ratio where race is named and where it is implied."""
    changed = [
        Rollout(r.prompt_id, r.set_id, r.split, r.prompt, text, r.metadata)
        for r, text in zip(rollouts, completions, strict=True)
    ]
    environment = FairnessEnvironment(FairnessSettings())
    environment.set_reference(rollouts)
    measurement = environment.measure(changed, environment.score(changed))
    total = measurement.sums.sum(axis=0)
    section = measurement.breakdowns["by_cue"]
    return {cue: float(m["disparity_ratio"].at(total)) for cue, m in section.items()}


def test_the_environment_has_trivial_policies_and_can_blind() -> None:
    assert ENVIRONMENT.offers(Environment.trivial_replies)
    assert ENVIRONMENT.offers(Environment.blinded)


def test_constants_are_decisions_from_the_least_to_the_most_invasive() -> None:
    parsed = [FORM.parse(text) for text in ENVIRONMENT.constant_replies()]
    assert all(isinstance(decision, Decision) and not decision.trailing for decision in parsed)
    totals = [decision.invasiveness for decision in parsed]
    assert totals == sorted(set(totals))
    assert (totals[0], totals[-1]) == (0, 10)


@pytest.mark.deep
def test_a_random_race_levels_what_is_named_and_nothing_that_is_implied(rollouts) -> None:
    before = ratio(rollouts, [r.completion for r in rollouts])
    drawn = ENVIRONMENT.trivial_replies(rollouts, 0)["random race"]
    after = ratio(rollouts, list(drawn))
    assert before["named"] > 1.3
    assert after["named"] < 1.1
    assert after["implied"] == before["implied"] > 1.3


def test_a_reader_is_told_what_a_policy_without_skill_does(rollouts) -> None:
    words = presentation_of(SPINE).words
    for name in ENVIRONMENT.trivial_replies(rollouts, 0):
        assert words[name].note


def test_replies_change_places_within_a_set_and_by_the_seed(rollouts) -> None:
    drawn = value_drawn_at_random(rollouts, SPINE, 0)
    assert (
        drawn
        == value_drawn_at_random(rollouts, SPINE, 0)
        != value_drawn_at_random(rollouts, SPINE, 1)
    )
    for start in range(0, len(rollouts), 16):
        own = [r.completion for r in rollouts[start : start + 16]]
        assert sorted(drawn[start : start + 16]) == sorted(own)


def test_blinding_makes_the_variants_of_a_set_one_prompt_where_race_is_named(records) -> None:
    for start in range(0, len(records), 4):
        variants = records[start : start + 4]
        texts = {ENVIRONMENT.blinded(r)[-1]["content"] for r in variants}
        if variants[0].metadata["cue"] == "named":
            [text] = texts
            assert not [race for race in RACES if f" {race}" in text]
        else:
            assert texts == {r.messages[-1]["content"] for r in variants}
