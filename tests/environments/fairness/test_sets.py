"""Rollouts into arrays: any order, whole sets only."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import IncompleteSetError, Rollout
from environments.fairness import sets as arrays
from environments.fairness.decision import MAX_WEEKS, coordinate
from environments.fairness.environment import distance, distribution, group_mean
from environments.fairness.metrics import BLIND_DISTANCE, measure_disparity
from environments.fairness.sets import MISSING, Anchors, DecisionSets, PairMeans, distances
from environments.fairness.spine import FORM, RACES, SPINE
from environments.fairness.words import WORDS_WEIGHT, Texts
from tests.environments.fairness.samples import same_words
from tests.equipoise.statistics.fairness_runs import blind, coupled, sets_of, unchanged

gather_sets = partial(arrays.gather_sets, design=SPINE)
decision_points = partial(arrays.decision_points, design=SPINE)


def rollout(set_id, race):
    return Rollout(f"{set_id}/{race}", set_id, "train", "", "", {"race": race, "of": set_id})


def medication(level):
    return FORM.decision(level, 0, 0.0, 0, 0, 0, "")


def test_every_rollout_goes_to_its_set_its_race_and_the_next_free_column():
    rollouts = [rollout(s, race) for _ in range(2) for race in reversed(RACES) for s in "ba"]
    parsed = [medication(i % 5) for i in range(len(rollouts))]
    sets = gather_sets(rollouts, decision_points(parsed))
    assert sets.set_ids == ("b", "a")
    assert [m["of"] for m in sets.metadata] == ["b", "a"]
    assert sets.points.shape == (2, len(RACES), 2, 6)
    assert sets.position[:3].tolist() == [[0, 3, 0], [1, 3, 0], [0, 2, 0]]
    assert sets.position[8].tolist() == [0, 3, 1]
    at = tuple(sets.position.T)
    assert sets.points[..., 0][at].tolist() == [d.levels[0] for d in parsed]


@pytest.mark.parametrize(
    ("rollouts", "said"),
    [
        ([rollout("a", race) for race in RACES[:3]], "Asian 0"),
        ([rollout("a", race) for race in (*RACES, "White")], "needs 2 of each race, has White 2"),
        (
            [rollout("a", race) for race in RACES * 2] + [rollout("b", race) for race in RACES],
            "set 'b' needs 2 of each race",
        ),
        ([rollout("a", "Martian")], "race 'Martian'"),
        ([Rollout("p", "a", "control", "", "")], "race None"),
    ],
    ids=["race missing", "one too many", "sets differ", "unknown race", "no race"],
)
def test_a_part_of_a_set_is_the_callers_bug(rollouts, said):
    with pytest.raises(IncompleteSetError, match=said):
        gather_sets(rollouts, decision_points([medication(0)] * len(rollouts)))


LOST = [MISSING] * 5
NOTHING = [0, 0, 0, 0, 0]  # invasiveness 0
PILLS = [1, 0, 0, 0, 0]  # 1
THERAPY = [1, 0, 1, 0, 0]  # 2
SURGERY = [4, 2, 0, 0, 1]  # 7


def decision_sets(*replies):
    """Sets from levels [S][R][G][F]; two races are enough here."""
    points = np.array(replies, dtype=np.float32)
    names = tuple(str(s) for s in range(len(replies)))
    return DecisionSets(names, points, np.empty((0, 3), dtype=np.intp), ({},) * len(replies), 5)


def reference_of(*samples):
    return np.array(samples, dtype=np.float32)


# Race A answers NOTHING and THERAPY, race B answers PILLS and SURGERY. The distances are the roots
# of L1: NOTHING-THERAPY 2, NOTHING-PILLS 1, NOTHING-SURGERY 7, THERAPY-PILLS 1, THERAPY-SURGERY 7
# (3 + 2 + 1 + 0 + 1), PILLS-SURGERY 6.
SETS = decision_sets([[NOTHING, THERAPY], [PILLS, SURGERY]])
REFERENCE = reference_of([NOTHING, PILLS, LOST])  # mean invasiveness 0.5


def test_distribution_by_hand():
    two, six, seven = 2**0.5, 6**0.5, 7**0.5
    expected = [[two - 0.5, two - (two + 1) / 2], [six - 0.5, six - (seven + six) / 2]]
    np.testing.assert_allclose(distribution(SETS, REFERENCE)[0], expected, rtol=1e-6)


def test_distribution_sees_words_beside_the_decision():
    replies = np.array([[["Rest.", "Go home."], ["Rest.", "Rest."]]], dtype=object)
    samples = np.array([["Rest.", "Rest.", "Lost."]], dtype=object)
    alike = decision_sets([[NOTHING, NOTHING], [NOTHING, NOTHING]])
    found = distribution(alike, REFERENCE, Texts(replies, samples))
    # "Rest." and "Go home." share no word; the samples that are parsed are "Rest." at 0 and 1.
    words, both = WORDS_WEIGHT**0.5, (1 + WORDS_WEIGHT) ** 0.5
    expected = [[words - 1 / 2, words - (words + both) / 2], [-1 / 2, -1 / 2]]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)


def test_distance_by_hand():
    assert distance(SETS, REFERENCE)[0].tolist() == [[-0.5, -1.5], [-0.5, -6.5]]


def test_group_mean_by_hand():
    terms = group_mean(SETS, REFERENCE)  # the mean of 0, 2, 1 and 7 is 2.5
    assert terms[0].tolist() == [[2.5, 0.5], [1.5, -4.5]]


def policy_gradient(chances, generations):
    """The exact expectation of GRPO's gradient with respect to the chance of each decision.

    Every outcome of `generations` draws from `chances`, as the reference has them; GRPO's
    advantage is the reward minus the mean over the generations of the prompt.
    """
    decisions = np.array([NOTHING, THERAPY, SURGERY], dtype=np.float32)
    gradient = np.zeros(3)
    reference = reference_of([NOTHING] * 5 + [THERAPY] * 3 + [SURGERY] * 2)  # 0.5, 0.3, 0.2
    for draw in itertools.product(range(3), repeat=generations):
        own = decisions[list(draw)].tolist()
        value = distribution(decision_sets([own, [LOST] * generations]), reference)[0, 0]
        for which, advantage in zip(draw, value - value.mean(), strict=True):
            gradient[which] += np.prod(chances[list(draw)]) * advantage / chances[which]
    return gradient - gradient.mean()


@pytest.mark.parametrize("generations", [3, 4, 5])
def test_grpo_stands_still_where_the_distributions_agree(generations):
    """Without the correction for siblings GRPO would be paid for collapsing."""
    chances = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(policy_gradient(chances, generations), 0, atol=1e-6)


def test_nan_where_there_is_nothing_to_compare_with():
    empty = reference_of([LOST, LOST])
    assert np.isnan(distribution(SETS, empty)).all()
    assert np.isnan(distance(SETS, empty)).all()
    no_siblings = decision_sets([[THERAPY, LOST], [PILLS, SURGERY]])
    assert np.isnan(distribution(no_siblings, REFERENCE)[0, 0]).all()


GENERATIONS = 32
points = st.tuples(
    *(st.sampled_from(levels) for levels in FORM.scored.values()),
    st.floats(0, MAX_WEEKS).map(lambda weeks: coordinate(round(weeks, 2))),
)


def energy(support, first, second):
    """The squared energy distance of two distributions over the rows of `support`, exactly."""
    change, pairs = first - second, distances(support, support)
    return float(-change @ pairs @ change)


@st.composite
def two_policies(draw):
    support = draw(st.lists(points, min_size=2, max_size=6, unique=True))
    shares = st.lists(st.integers(0, 5), min_size=len(support), max_size=len(support)).filter(any)
    first, second = (np.array(draw(shares), dtype=float) for _ in range(2))
    return np.array(support, dtype=float), first / first.sum(), second / second.sum()


@given(two_policies())
def test_two_policies_are_apart_unless_they_are_the_same(policies):
    support, first, second = policies
    if np.allclose(first, second):
        assert energy(support, first, second) == pytest.approx(0, abs=1e-12)
    else:
        assert energy(support, first, second) > 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_is_unbiased(seed):
    """Of few replies, a tenth of them unreadable."""
    rng = np.random.default_rng(seed)
    highest = [levels[-1] + 1 for levels in FORM.scored.values()]
    support = np.column_stack([rng.integers(highest, size=(5, 5)), rng.random(5)])
    first, second = rng.dirichlet(np.ones(5), size=2)
    generations, drawn = rng.integers(2, 5, size=2).tolist()

    def replies(chances, number):
        rows = rng.choice(len(support), p=chances, size=(4_000, len(RACES), number))
        found = support[rows].astype(np.float32)
        found[rng.random(rows.shape) < 0.1] = MISSING
        return found

    found = PairMeans.of(replies(first, generations), replies(second, drawn)).blind_distance
    per_set = np.nanmean(found[~np.isnan(found).all(axis=1)], axis=1)
    error = per_set.std() / len(per_set) ** 0.5
    assert per_set.mean() == pytest.approx(energy(support, first, second), abs=4 * error)


def test_the_distance_is_that_of_race_and_that_of_all_pooled():
    """The part that race makes and the change for all races add up, exactly."""
    rng = np.random.default_rng(2)
    replies, reference = (rng.integers(0, 3, (6, 4, 9, 6)).astype(np.float32) for _ in range(2))
    replies[:, 0] = 0  # one race is told apart
    pooled = [points.reshape(6, 1, 36, 6) for points in (replies.astype(float), reference)]
    for_all = np.sqrt(np.abs(pooled[0][:, 0, :, None] - pooled[1][:, 0, None]).sum(-1)).mean((1, 2))
    means = PairMeans.of(replies, reference)
    common = 2 * for_all - means.of_pooled - means.of_mixture
    np.testing.assert_allclose(
        means.blind_distance.mean(axis=1), means.between_values + common, atol=1e-9
    )
    assert means.between_values.min() > 0.05


def test_sets_are_measured_by_themselves():
    """However many are held in memory at once."""
    rng = np.random.default_rng(1)
    replies, reference = (rng.integers(0, 2, (40, 4, 20, 5)).astype(np.float32) for _ in range(2))
    whole = PairMeans.of(replies, reference)
    for n in (0, 39):
        one = PairMeans.of(replies[n : n + 1], reference[n : n + 1])
        np.testing.assert_allclose(whole.blind_distance[n], one.blind_distance[0], atol=1e-12)


#: Of each field whether it goes with medication, for the first two races and for the others.
TOGETHER, CROSSED = (1, 1, 1, 1, 1), (1, -1, 1, -1, 1)


@pytest.fixture(scope="module")
def sides():
    """The biased clinician, his blind mixture, and the mixture with its fields put together."""
    sets, rng = sets_of(1), np.random.default_rng(0)
    mixture = blind(sets, GENERATIONS, rng)
    signs = np.array([TOGETHER, TOGETHER, CROSSED, CROSSED])
    signs[2:, 4] = -1
    policies = {
        "untrained": unchanged(sets, GENERATIONS, rng),
        "blind": mixture,
        "whole": coupled(mixture, signs, rng),
    }
    return sets, policies, unchanged(sets, GENERATIONS, rng)


def test_a_policy_that_is_fair_field_by_field_is_far_from_blind(sides):
    """As far as half of what the untrained clinician is, by the objective and by the reward."""
    sets, policies, reference = sides
    unknown = np.full(len(sets.names), np.nan)
    distance, reward = {}, {}
    for name, replies in policies.items():
        of_policy = DecisionSets(sets.names, replies, np.empty((0, 3), int), sets.metadata, 5)
        anchors = Anchors(unknown, unknown, unknown, reference)
        measured = measure_disparity(of_policy, anchors, SPINE, same_words(replies))
        found = measured.point_estimates()
        distance[name] = found[BLIND_DISTANCE]
        pooled = reference.reshape(len(reference), -1, reference.shape[-1])
        reward[name] = float(2 * distribution(of_policy, pooled).mean())
        if name != "untrained":
            assert found["disparity_ratio"] < 1.04
    assert distance["blind"] < 0.06
    assert distance["whole"] > distance["untrained"] / 2 > 0.13
    assert reward["blind"] - reward["whole"] > (reward["blind"] - reward["untrained"]) / 2 > 0.05
