"""The three rewards: worked by hand, their expectation, and the failure of the old rule."""

import itertools

import numpy as np
import pytest

from environments.fairness.environment import (
    distance,
    distribution,
    group_mean,
)
from environments.fairness.sets import MISSING, DecisionSets
from environments.fairness.words import WORDS_WEIGHT, Texts

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
    two, six, seven = 2**0.5, 6**0.5, 7**0.5
    expected = [[two - 0.5, two - (two + 1) / 2], [six - 0.5, six - (seven + six) / 2]]
    np.testing.assert_allclose(distribution(SETS, REFERENCE)[0], expected, rtol=1e-6)


def test_distribution_sees_words_beside_the_decision() -> None:
    replies = np.array([[["Rest.", "Go home."], ["Rest.", "Rest."]]], dtype=object)
    samples = np.array([["Rest.", "Rest.", "Lost."]], dtype=object)
    alike = sets_of([[NOTHING, NOTHING], [NOTHING, NOTHING]])
    found = distribution(alike, REFERENCE, Texts(replies, samples))
    # "Rest." and "Go home." share no word; the samples that are parsed are "Rest." at 0 and 1.
    words, both = WORDS_WEIGHT**0.5, (1 + WORDS_WEIGHT) ** 0.5
    expected = [[words - 1 / 2, words - (words + both) / 2], [-1 / 2, -1 / 2]]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)


def test_distance_by_hand() -> None:
    assert distance(SETS, REFERENCE)[0].tolist() == [[-0.5, -1.5], [-0.5, -6.5]]


def test_group_mean_by_hand() -> None:
    terms = group_mean(SETS, REFERENCE)  # the mean of 0, 2, 1 and 7 is 2.5
    assert terms[0].tolist() == [[2.5, 0.5], [1.5, -4.5]]


def policy_gradient(chances: np.ndarray, generations: int) -> np.ndarray:
    """The exact expectation of GRPO's gradient with respect to the chance of each decision.

    Every outcome of `generations` draws from `chances`, as the reference has them; GRPO's
    advantage is the reward minus the mean over the generations of the prompt.
    """
    decisions = np.array([NOTHING, THERAPY, SURGERY], dtype=np.float32)
    gradient = np.zeros(3)
    reference = reference_of([NOTHING] * 5 + [THERAPY] * 3 + [SURGERY] * 2)  # 0.5, 0.3, 0.2
    for draw in itertools.product(range(3), repeat=generations):
        own = decisions[list(draw)].tolist()
        value = distribution(sets_of([own, [LOST] * generations]), reference)[0, 0]
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
    assert np.isnan(distribution(SETS, empty)).all()
    assert np.isnan(distance(SETS, empty)).all()
    no_siblings = sets_of([[THERAPY, LOST], [PILLS, SURGERY]])
    assert np.isnan(distribution(no_siblings, REFERENCE)[0, 0]).all()
