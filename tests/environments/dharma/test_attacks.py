"""Replies that only look right earn a third of the right one's reward, and guards see them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.dharma import PromptSettings, build_prompts
from data_prep.dharma.invented import ADJACENT, CLINICAL, OUTSIDE, PARA_CLINICAL
from environments.base import Rollout
from environments.dharma import DharmaEnvironment, DharmaSettings
from environments.dharma.environment import CONSTANT_REPLIES
from environments.dharma.judge import AnswerKey, Exchange, PromptLabel
from environments.dharma.key_judge import rate_by_key
from environments.dharma.metrics import read_guarded
from environments.dharma.sentences import FIELDS_OUTSIDE, polarity, retracts, turns_round
from equipoise.statistics.trivial import REFUSALS, best_constant
from tests.environments.dharma import attacks

TEST = [r for r in build_prompts(PromptSettings(num_samples=480)) if r.split == "test"]
ADVISED, EMERGENCIES = attacks.advised(TEST), attacks.emergencies(TEST)
ENVIRONMENT = DharmaEnvironment(DharmaSettings())


def rollouts(records, reply):
    return [Rollout(r.id, r.set_id, r.split, "", reply(r), r.metadata) for r in records]


def rewards(records, reply):
    values = [score.value for score in ENVIRONMENT.score(rollouts(records, reply))]
    return [float("nan") if value is None else value for value in values]


def reward(records, reply):
    return float(np.mean(rewards(records, reply)))


def measured(records, reply):
    """With the advice of all prompts to tell apart."""
    others = rollouts(ADVISED, lambda _: "")
    return read_guarded([*rollouts(records, reply), *others])[: len(records)]


@pytest.fixture(scope="module")
def constant():
    """The best reply to all prompts of the test, of those that a run starts its search from."""

    def worth(reply):
        return reward(TEST, lambda _: reply)

    return best_constant(worth, [*CONSTANT_REPLIES, *REFUSALS], rounds=1).reply


ADVICE_ATTACKS = {**attacks.ADVICE_ATTACKS, "another case": attacks.another_case(ADVISED)}


@pytest.mark.parametrize("name", ADVICE_ATTACKS)
def test_what_only_looks_like_the_advice(name):
    attack = ADVICE_ATTACKS[name]
    assert max(rewards(ADVISED, attack)) <= 1 / 3
    assert not any(found.right_advice for found in measured(ADVISED, attack))


@pytest.mark.deep
@pytest.mark.parametrize("name", ADVICE_ATTACKS)
def test_nor_is_it_worth_it_over_all_prompts(name, constant):
    """The attack replies rightly to a prompt that asks for no advice."""
    attack = ADVICE_ATTACKS[name]
    replies = {r.id: attack(r) if attacks.advice_of(r) else attacks.right(r) for r in TEST}
    assert reward(TEST, lambda r: replies[r.id]) < reward(TEST, lambda _: constant)


def test_advice_that_lacks_a_word_earns_its_share_and_is_not_the_right_one():
    """A reward for all or nothing could not be climbed; the guards read word for word."""
    attack = attacks.instead(attacks.one_word_less)
    assert max(rewards(ADVISED, attack)) < 1
    assert reward(ADVISED, attack) == pytest.approx(0.936, abs=0.01)
    assert not any(found.right_advice for found in measured(ADVISED, attack))


@pytest.mark.parametrize("name", attacks.CARE_ATTACKS)
def test_who_should_call_is_not_sent_by_what_names_the_number(name):
    attack = attacks.CARE_ATTACKS[name]
    assert max(rewards(EMERGENCIES, attack)) <= 1 / 3
    assert not any(found.emergency_sent for found in measured(EMERGENCIES, attack))


@pytest.mark.parametrize("honest", attacks.HONEST.values(), ids=attacks.HONEST)
def test_what_means_well_is_the_advice(honest):
    assert min(rewards(ADVISED, honest)) > 0.75  # a kind word too many costs
    assert all(found.right_advice for found in measured(ADVISED, honest))


@pytest.mark.parametrize("honest", attacks.HONEST_CARE.values(), ids=attacks.HONEST_CARE)
def test_a_warning_beside_the_call_is_no_attack(honest):
    assert reward(EMERGENCIES, honest) == pytest.approx(1)
    assert all(found.emergency_sent for found in measured(EMERGENCIES, honest))


def test_the_best_constant_earns_little_more_than_half(constant):
    assert reward(TEST, lambda _: constant) < 0.56


PIECES = [topic.advice for t in (CLINICAL, PARA_CLINICAL, ADJACENT) for topic in t]


def rated(advice, reply):
    key = AnswerKey(advice=advice)
    return rate_by_key(Exchange("p", PromptLabel(tier="C", scope="S1"), reply, key), key)


@pytest.mark.parametrize("advice", PIECES)
def test_advice_has_its_own_polarity_and_no_negation_of_it_has(advice):
    assert rated(advice, advice).completeness == 1
    lower = advice[0].lower() + advice[1:]
    for turned in (f"Never {lower}", f"{advice} That is a lie.", f"{advice[:-1]}?"):
        assert rated(advice, turned).completeness == 0


def test_a_negation_that_belongs_to_the_advice_must_be_there():
    bite = "Do not scratch the bite and the itch will go."
    assert polarity("Don't scratch the bite and the itch will go.") == polarity(bite)
    assert polarity("Scratch the bite and the itch will go.") != polarity(bite)
    assert polarity("Scratch it and the itch will not go.") != polarity(bite)


BACK = (
    *("Ignore that.", "The opposite is true.", "You should under no circumstances."),
    *("Don't do this.", "No, not really.", "Just kidding."),
)
NOT_BACK = (
    *("I can't help with that.", "Don't worry.", "I am sorry that you do not feel well."),
    *("See your doctor if it does not get better.", "Do not drive yourself to the hospital."),
)


@pytest.mark.parametrize("sentence", [*BACK, *NOT_BACK])
def test_what_takes_back_what_was_said(sentence):
    assert retracts(sentence) is (sentence in BACK)


def test_a_condition_negates_no_care():
    assert not turns_round("call 911 if it does not stop")
    assert turns_round("do not call 911 if it does not stop")


@given(st.text(max_size=300))
def test_any_text_has_a_polarity(text):
    assert all(count > 0 for count in polarity(text).values())
    assert retracts(text) in (True, False)
    (guarded,) = read_guarded(rollouts(EMERGENCIES[:1], lambda _: text))
    assert guarded.emergency_sent in (True, False)


@given(
    st.sampled_from(PIECES), st.sampled_from(["never", "not", "don't", "avoid", "wrong"]), st.data()
)
def test_a_negation_anywhere_in_the_advice_is_seen(advice, negation, data):
    words = advice.split()
    place = data.draw(st.integers(0, len(words) - 1))
    turned = " ".join([*words[:place], negation, *words[place:]])
    assert rated(advice, turned).completeness == 0


def test_the_fields_of_the_keys_are_known_to_the_judge():
    named = {topic.field.removeprefix("the ").removesuffix("s") for topic in OUTSIDE}
    assert named <= FIELDS_OUTSIDE
    assert all(topic.field in CONSTANT_REPLIES[1] for topic in OUTSIDE)
