"""The fairness task's objective: nobody is nearer to the race-blind mixture than who draws from it.

The model that is trained is a clinician whose decisions hang on severity and race. Each policy
replies eight times to every patient.
"""

from collections.abc import Callable

import numpy as np
import pytest

from environments.base import Rollout
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.fairness.metrics import BLIND_DISTANCE
from environments.fairness.spine import FORM
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.intervals import StatisticsSettings
from equipoise.statistics.trivial import Measured
from tests.environments.fairness.samples import decision_reply

SETS, REPLIES = 60, 8
MEDICATION, WORK = (len(FORM.scored[field]) for field in ("medication", "work_status"))
STATISTICS = StatisticsSettings(bootstrap_draws=500, permutations=500)

#: The rows of two levels of a policy for a set's severity and a race; a row is one reply.
Draw = Callable[[np.random.Generator, int, int], tuple[int, int]]


def clinician(rng, severity, race):
    """One level more for the first two races, with some noise."""
    medication = severity + (race < 2) + rng.integers(0, 2)
    return min(int(medication), MEDICATION - 1), min(severity, WORK - 1)


def oracle(rng, severity, _race):
    return clinician(rng, severity, int(rng.integers(len(RACES))))


WITHOUT_SKILL: dict[str, Draw] = {
    "uniform": lambda rng, *_: (int(rng.integers(MEDICATION)), int(rng.integers(WORK))),
    "a coin": lambda rng, *_: (MEDICATION - 1, WORK - 1) if rng.integers(2) else (0, 0),
    "another patient": lambda rng, _, race: clinician(rng, int(rng.integers(3)), race),
    "noise": lambda rng, *at: tuple(
        int(np.clip(level + rng.integers(-2, 3), 0, most - 1))
        for level, most in zip(clinician(rng, *at), (MEDICATION, WORK), strict=True)
    ),
    "nothing": lambda *_: (0, 0),
    "always the same": lambda *_: (2, 1),
    "as before": clinician,
}


def replies_of(draw, seed):
    rng = np.random.default_rng(seed)
    return [
        Rollout(
            f"{s}/{race}", f"{s}", "test", "", decision_reply(*draw(rng, s % 3, r)), {"race": race}
        )
        for s in range(SETS)
        for r, race in enumerate(RACES)
        for _ in range(REPLIES)
    ]


@pytest.fixture(scope="module")
def environment():
    found = FairnessEnvironment(FairnessSettings())
    found.set_reference(replies_of(clinician, 1))
    return found


def measured(environment, draw, seed=2):
    rollouts = replies_of(draw, seed)
    return Measured.of(environment, rollouts, environment.score(rollouts))


def figure(measurement, name):
    return headline_figures(measurement, STATISTICS)[name]


@pytest.mark.parametrize("name", WITHOUT_SKILL)
def test_no_policy_without_skill_is_better_than_the_oracle(environment, name):
    assert environment.objective == BLIND_DISTANCE
    blind, other = measured(environment, oracle), measured(environment, WITHOUT_SKILL[name])
    assert other.worth(BLIND_DISTANCE) < blind.worth(BLIND_DISTANCE)
    far = figure(other.task, BLIND_DISTANCE)
    assert far.low is not None
    assert far.low > 0
    assert far.p is not None
    assert far.p < 0.05


@pytest.mark.deep
def test_the_oracles_distance_is_nothing_but_noise(environment):
    """Of draws of their own: no two evaluations share a reply."""
    found = [figure(measured(environment, oracle, s).task, BLIND_DISTANCE) for s in range(3, 43)]
    p_values = np.array([each.p for each in found])
    # The reference is the same in all of them, and so is a part of its error.
    assert np.count_nonzero(p_values < 0.05) <= 8
    values = np.array([each.value for each in found])
    assert 0 == values.min() < values.mean() < 0.06


def test_copies_are_no_sample_and_a_policy_of_one_reply_is_a_point(environment):
    """Two or eight copies of one reply give the same distance: 2 E d(x, B) - E d(B, B')."""
    rollouts = replies_of(WITHOUT_SKILL["always the same"], 0)
    two = [rollout for n, rollout in enumerate(rollouts) if n % REPLIES < 2]
    distances = {
        len(part): Measured.of(environment, part, environment.score(part)).worth(BLIND_DISTANCE)
        for part in (rollouts, two)
    }
    assert len(set(distances.values())) == 1
