"""The three rewards: worked by hand, their expectation, and the failure of the old rule."""

import itertools

import numpy as np
import pytest

from environments.fairness.rewards import (
    distance,
    distribution,
    group_mean,
)
from environments.fairness.sets import MISSING, DecisionSets

LOST = [MISSING] * 5
NOTHING = [0, 0, 0, 0, 0]  # invasiveness 0
PILLS = [1, 0, 0, 0, 0]  # 1
THERAPY = [1, 0, 1, 0, 0]  # 2
SURGERY = [4, 2, 0, 0, 1]  # 7


def sets_of(*replies: list[list[list[int]]]) -> DecisionSets:
    """Sets from levels [S][R][G][F]; two races are enough here."""
    points = np.array(replies, dtype=np.float32)
    names = tuple(str(s) for s in range(len(replies)))
    return DecisionSets(names, points, np.empty((0, 3), dtype=np.intp), ({},) * len(replies), 5)


def reference_of(*samples: list[list[int]]) -> np.ndarray:
    return np.array(samples, dtype=np.float32)


# Race A answers NOTHING and THERAPY, race B answers PILLS and SURGERY. The distances are the roots
# of L1: NOTHING-THERAPY 2, NOTHING-PILLS 1, NOTHING-SURGERY 7, THERAPY-PILLS 1, THERAPY-SURGERY 7
# (3 + 2 + 1 + 0 + 1), PILLS-SURGERY 6.
SETS = sets_of([[NOTHING, THERAPY], [PILLS, SURGERY]])
REFERENCE = reference_of([NOTHING, PILLS, LOST])  # mean invasiveness 0.5


def test_distribution_by_hand() -> None:
    terms = distribution(SETS, REFERENCE)
    two, six, seven = 2**0.5, 6**0.5, 7**0.5
    expected = [[two - (1 + seven) / 2] * 2, [six - 1, six - seven]]
    np.testing.assert_allclose(terms.counterfactual[0], expected, rtol=1e-6)
    expected = [[two - 0.5, two - (two + 1) / 2], [six - 0.5, six - (seven + six) / 2]]
    np.testing.assert_allclose(terms.reference[0], expected, rtol=1e-6)


def test_distance_by_hand() -> None:
    terms = distance(SETS, REFERENCE)  # invasiveness 0 and 2 against 1 and 7: means 1 and 4
    assert terms.counterfactual[0].tolist() == [[-4.0, -2.0], [0.0, -6.0]]
    assert terms.reference[0].tolist() == [[-0.5, -1.5], [-0.5, -6.5]]


def test_group_mean_by_hand() -> None:
    terms = group_mean(SETS, REFERENCE)  # the mean of 0, 2, 1 and 7 is 2.5
    assert terms.counterfactual[0].tolist() == [[2.5, 0.5], [1.5, -4.5]]
    assert terms.reference[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("reward", [distribution, distance, group_mean])
def test_an_unparseable_reply_has_no_terms_and_counts_for_nobody(reward) -> None:
    with_lost = reward(sets_of([[NOTHING, THERAPY, LOST], [PILLS, SURGERY, LOST]]), REFERENCE)
    without = reward(SETS, REFERENCE)
    for name in ("counterfactual", "reference"):
        found = getattr(with_lost, name)
        assert np.isnan(found[..., 2]).all()
        np.testing.assert_array_equal(found[..., :2], getattr(without, name))


@pytest.mark.parametrize("reward", [distribution, distance, group_mean])
def test_a_set_is_scored_as_if_it_stood_alone(reward) -> None:
    other = [[SURGERY, SURGERY], [NOTHING, LOST]]
    both = reward(
        sets_of([[NOTHING, THERAPY], [PILLS, SURGERY]], other),
        reference_of([NOTHING, PILLS, LOST], [LOST, LOST, SURGERY]),
    )
    alone = reward(SETS, REFERENCE)
    np.testing.assert_array_equal(both.counterfactual[:1], alone.counterfactual)
    np.testing.assert_array_equal(both.reference[:1], alone.reference)


def expected_terms(chances: list[float], reference_chances: list[float]) -> np.ndarray:
    """E[term | own decision] over every outcome, for race A's first reply, [2 terms, 2 decisions].

    Race A draws NOTHING or SURGERY with `chances`, race B and the reference with
    `reference_chances`; two generations each and two reference samples.
    """
    decisions = [NOTHING, SURGERY]
    total = np.zeros((2, 2))
    for own, sibling, b1, b2, r1, r2 in itertools.product((0, 1), repeat=6):
        chance = chances[sibling] * np.prod([reference_chances[i] for i in (b1, b2, r1, r2)])
        a = [decisions[own], decisions[sibling]]
        sets = sets_of([a, [decisions[b1], decisions[b2]]])
        terms = distribution(sets, reference_of([decisions[r1], decisions[r2]]))
        total[:, own] += chance * np.array(
            [terms.counterfactual[0, 0, 0], terms.reference[0, 0, 0]]
        )
    return total


def test_distribution_rewards_what_the_other_races_get_more_often() -> None:
    terms = expected_terms([0.9, 0.1], [0.5, 0.5])  # race A is treated less often
    # E d(x, X') - E d(x, O): for NOTHING root 7 * (0.1 - 0.5), for SURGERY root 7 * (0.9 - 0.5)
    np.testing.assert_allclose(terms, 7**0.5 * np.array([[-0.4, 0.4], [-0.4, 0.4]]), rtol=1e-6)


def policy_gradient(chances: np.ndarray, generations: int) -> np.ndarray:
    """The exact expectation of GRPO's gradient with respect to the chance of each decision.

    Every outcome of `generations` draws from `chances`, for both races and the reference alike;
    GRPO's advantage is the reward minus the mean over the generations of the prompt.
    """
    decisions = np.array([NOTHING, THERAPY, SURGERY], dtype=np.float32)
    gradient = np.zeros(3)
    reference = reference_of([NOTHING] * 5 + [THERAPY] * 3 + [SURGERY] * 2)  # 0.5, 0.3, 0.2
    other = [NOTHING] * 5 + [THERAPY] * 3 + [SURGERY] * 2
    for draw in itertools.product(range(3), repeat=generations):
        own = np.full((10, 5), MISSING, dtype=np.float32)  # both races need as many columns
        own[:generations] = decisions[list(draw)]
        terms = distribution(sets_of([own.tolist(), other]), reference)
        value = (terms.counterfactual + terms.reference)[0, 0, :generations]
        for which, advantage in zip(draw, value - value.mean(), strict=True):
            gradient[which] += np.prod(chances[list(draw)]) * advantage / chances[which]
    return gradient - gradient.mean()


@pytest.mark.parametrize("generations", [3, 4, 5])
def test_grpo_stands_still_where_the_distributions_agree(generations: int) -> None:
    """Without the correction for siblings GRPO would be paid for collapsing."""
    chances = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(policy_gradient(chances, generations), 0, atol=1e-6)


def test_nan_where_there_is_nothing_to_compare_with() -> None:
    empty = reference_of([LOST, LOST])
    alone = sets_of([[THERAPY, THERAPY], [LOST, LOST]])
    assert np.isnan(distribution(alone, REFERENCE).counterfactual).all()
    assert np.isnan(distance(alone, REFERENCE).counterfactual).all()
    assert np.isnan(distribution(SETS, empty).reference).all()
    assert np.isnan(distance(SETS, empty).reference).all()
    no_siblings = sets_of([[THERAPY, LOST], [PILLS, SURGERY]])
    assert np.isnan(distribution(no_siblings, REFERENCE).counterfactual[0, 0]).all()
