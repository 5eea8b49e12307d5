"""The distance of two policies: it sees whole decisions, and its estimate is unbiased."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.fairness.decision import MAX_WEEKS, coordinate
from environments.fairness.environment import distribution
from environments.fairness.metrics import BLIND_DISTANCE, measure_disparity
from environments.fairness.sets import MISSING, Anchors, DecisionSets, PairMeans, Points, distances
from environments.fairness.spine import FORM, RACES, SPINE
from environments.measurement import Array
from tests.environments.fairness.samples import same_words
from tests.equipoise.statistics.fairness_runs import Sets, blind, coupled, sets_of, unchanged

GENERATIONS = 32
points = st.tuples(
    *(st.sampled_from(levels) for levels in FORM.scored.values()),
    st.floats(0, MAX_WEEKS).map(lambda weeks: coordinate(round(weeks, 2))),
)


def energy(support: Array, first: Array, second: Array) -> float:
    """The squared energy distance of two distributions over the rows of `support`, exactly."""
    change, pairs = first - second, distances(support, support)
    return float(-change @ pairs @ change)


@st.composite
def two_policies(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    support = draw(st.lists(points, min_size=2, max_size=6, unique=True))
    shares = st.lists(st.integers(0, 5), min_size=len(support), max_size=len(support)).filter(any)
    first, second = (np.array(draw(shares), dtype=float) for _ in range(2))
    return np.array(support, dtype=float), first / first.sum(), second / second.sum()


@given(two_policies())
def test_two_policies_are_apart_unless_they_are_the_same(
    policies: tuple[Array, Array, Array],
) -> None:
    support, first, second = policies
    if np.allclose(first, second):
        assert energy(support, first, second) == pytest.approx(0, abs=1e-12)
    else:
        assert energy(support, first, second) > 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_is_unbiased(seed: int) -> None:
    """Of few replies, a tenth of them unreadable."""
    rng = np.random.default_rng(seed)
    highest = [levels[-1] + 1 for levels in FORM.scored.values()]
    support = np.column_stack([rng.integers(highest, size=(5, 5)), rng.random(5)])
    first, second = rng.dirichlet(np.ones(5), size=2)
    generations, drawn = rng.integers(2, 5, size=2).tolist()

    def replies(chances: Array, number: int) -> Points:
        rows = rng.choice(len(support), p=chances, size=(4_000, len(RACES), number))
        found = support[rows].astype(np.float32)
        found[rng.random(rows.shape) < 0.1] = MISSING
        return found

    found = PairMeans.of(replies(first, generations), replies(second, drawn)).blind_distance
    per_set = np.nanmean(found[~np.isnan(found).all(axis=1)], axis=1)
    error = per_set.std() / len(per_set) ** 0.5
    assert per_set.mean() == pytest.approx(energy(support, first, second), abs=4 * error)


def test_sets_are_measured_by_themselves() -> None:
    """However many are held in memory at once."""
    rng = np.random.default_rng(1)
    replies, reference = (rng.integers(0, 2, (40, 4, 20, 5)).astype(np.float32) for _ in range(2))
    whole = PairMeans.of(replies, reference)
    for n in (0, 39):
        one = PairMeans.of(replies[n : n + 1], reference[n : n + 1])
        np.testing.assert_allclose(whole.blind_distance[n], one.blind_distance[0], atol=1e-12)


# --- policies whose fields are distributed alike -------------------------------------------------

#: Of each field whether it goes with medication, for the first two races and for the others.
TOGETHER, CROSSED = (1, 1, 1, 1, 1), (1, -1, 1, -1, 1)


@pytest.fixture(scope="module")
def sides() -> tuple[Sets, dict[str, Points], Points]:
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


def test_a_policy_that_is_fair_field_by_field_is_far_from_blind(sides) -> None:
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
