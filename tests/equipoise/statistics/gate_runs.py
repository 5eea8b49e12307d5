"""Simulated evaluations before and after, of every task, for how often the gate says what.

Fairness has its invented clinician (fairness_runs). Of each other task the replies of who knows the
answer, those to another prompt, unreadable ones and, where care must not be named, ones that name
it, are scored once by the task's own reward. A stage is then drawn: a model that is right in one
prompt always and in another never, or in part (beta-binomial), and the same one afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from environments.base import REWARD
from environments.fairness.decision import coordinate
from environments.fairness.environment import FairnessEnvironment
from environments.fairness.metrics import BLIND_DISTANCE, measure_disparity
from environments.fairness.sets import MISSING, Anchors, DecisionSets
from environments.fairness.spine import SPINE
from environments.measurement import Measurement
from equipoise.statistics.gate import (
    GatedMetrics,
    Watched,
    compare_watched,
    gate,
    verdict_of,
    watched,
)
from equipoise.statistics.intervals import StatisticsSettings
from tests.environments.fairness.samples import same_words
from tests.equipoise.statistics.fairness_runs import (
    SCORED,
    Policy,
    Sets,
    blind,
    coupled,
    sets_of,
    unchanged,
)

SETTINGS = StatisticsSettings(bootstrap_draws=1_000)
RIGHT, WRONG, BROKEN, REFERRING = range(4)
#: How often a model is right on average, how alike its replies to one prompt are, and how many of
#: the replies that are not right cannot be read.
SKILL, CORRELATION, UNREADABLE = 0.8, 0.5, 0.02
_BROKEN_REPLY = "I would rather not."
_REFERRAL = " Please see a doctor."


@dataclass(frozen=True)
class Pool:
    """Rewards of each kind of reply to each prompt, and its terms in the sums of a task."""

    task: Measurement  # [kinds * prompts] rows
    reward: Measurement
    prompts: int

    @classmethod
    def of(cls, known):
        """Score four replies to every prompt."""
        number = len(known.records)
        other = [known.right[(n + number // 2) % number] for n in range(number)]
        kinds = (known.right, other, [_BROKEN_REPLY] * number, [r + _REFERRAL for r in known.right])
        rollouts = [
            replace(
                rollout, prompt_id=f"{rollout.prompt_id}#{kind}", set_id=f"{rollout.set_id}#{kind}"
            )
            for kind, replies in enumerate(kinds)
            for rollout in known.replied(replies)
        ]
        scores = known.environment.score(rollouts)
        of_task = Watched(known.environment, {})
        measures = of_task.measure_task, of_task.measure_reward
        task, reward = (measure(rollouts, scores) for measure in measures)
        assert len(task.sums) == len(reward.sums) == len(rollouts)
        return cls(task, reward, number)

    def stage(self, counts):
        """The measurements of so many replies of each kind [K, P] to each prompt."""
        return self._summed(self.task, counts), self._summed(self.reward, counts)

    def _summed(self, measured, counts):
        sums = measured.sums.reshape(len(counts), self.prompts, -1)
        return replace(
            measured,
            clusters=tuple(name.partition("#")[0] for name in measured.clusters[: self.prompts]),
            sums=(counts[..., None] * sums).sum(axis=0),
            strata=measured.strata and measured.strata[: self.prompts],
        )

    def value(self, metric, kind):
        """A metric of a model all of whose replies are of one kind."""
        counts = np.zeros((4, self.prompts), dtype=int)
        counts[kind] = 1
        task, reward = self.stage(counts)
        return (reward if metric == REWARD else task).point_estimates()[metric]

    def sides(self, rng, replies, after):
        """Before, and after with a share of the right replies made another kind."""
        weight = (1 - CORRELATION) / CORRELATION
        chances = rng.beta(SKILL * weight, (1 - SKILL) * weight, self.prompts)
        stages = [self.stage(drawn(rng, chances, replies, c)) for c in (Change(), after)]
        return list(zip(*stages, strict=True))

    def round(self, replies, after, *, swapped=False):
        """A function that draws both sides and compares them; `swapped` exchanges the sides."""

        def run(rng):
            found: GatedMetrics = {}
            for pair in self.sides(rng, replies, after):
                sides = reversed(pair) if swapped else pair
                found |= compare_watched(*sides, settings=SETTINGS)
            return found

        return run


@dataclass(frozen=True)
class Change:
    """The share of the right replies that is of another kind afterwards."""

    kind: int = WRONG
    share: float = 0.0


def drawn(rng, chances, replies, change):
    """Replies of each kind to each prompt, [K, P]."""
    counts = np.zeros((4, len(chances)), dtype=int)
    right = rng.binomial(replies, chances)
    spoilt = rng.binomial(right, change.share)
    broken = rng.binomial(replies - right, UNREADABLE)
    counts[RIGHT], counts[BROKEN] = right - spoilt, broken
    counts[WRONG] = replies - right - broken
    counts[change.kind] += spoilt
    return counts


def planted(pool, metric, margins, kind=WRONG):
    """The change that makes a metric worse by so many of its margins, on average."""
    task, reward = pool.task.metrics, pool.reward.metrics
    guard = (reward if metric == REWARD else task)[metric].guard
    assert guard is not None
    fall = abs(pool.value(metric, RIGHT) - pool.value(metric, kind))
    return Change(kind, margins * guard.by / fall / SKILL)


def watched_sets(sets, points, reference):
    """The guards and the objective, held against the race-blind mixture of a reference."""
    mean = np.full(len(sets.names), np.nan)
    position = np.empty((0, 3), dtype=np.intp)
    of_stage = DecisionSets(sets.names, points, position, sets.metadata, SCORED)
    anchors = Anchors(mean, mean, mean, reference)
    found = measure_disparity(of_stage, anchors, SPINE, same_words(points))
    return watched(found, {BLIND_DISTANCE: FairnessEnvironment.objective_margin})


def biased(bias):
    """The clinician with his bias scaled; 1 is a distance of .28."""
    return lambda sets, generations, rng: sets.decisions(generations, rng, bias)


def mixed(share, policy, other=unchanged):
    """A policy with a share of its replies by another one."""

    def decide(sets, generations, rng):
        own, others = (each(sets, generations, rng) for each in (policy, other))
        return np.where(rng.random(own.shape[:3])[..., None] < share, others, own)

    return decide


#: What makes the distance grow by two margins of .05 from that of the clinician.
MORE_BIASED = biased(1.36)
#: A model without bias, with a fifth of the biased clinician's replies.
FIFTH_BIASED = mixed(0.2, blind)


def fairness_sides(rng, generations, after, sets=1, before=unchanged):
    """The clinician, and who comes after him, on test sets of so many random seeds together.

    Both are held against the mixture of one reference, which is drawn apart.
    """
    chosen = _joined([sets_of(int(seed)) for seed in rng.choice(200, sets, replace=False)])
    reference = unchanged(chosen, 16, rng)
    return [
        watched_sets(chosen, policy(chosen, generations, rng), reference)
        for policy in (before, after)
    ]


def fairness_round(generations, after, sets=1, before=unchanged):
    """A function that draws both sides and compares them."""
    return lambda rng: compare_watched(
        *fairness_sides(rng, generations, after, sets, before), settings=SETTINGS
    )


def _joined(parts):
    return Sets(
        tuple(f"{n}/{name}" for n, part in enumerate(parts) for name in part.names),
        tuple(each for part in parts for each in part.metadata),
        np.concatenate([part.urgency for part in parts]),
    )


def opioids_for_one_race(sets, generations, rng):
    """In 30% of the injections of a race an opioid in their place, one level more."""
    own = blind(sets, generations, rng)
    chosen = (own[:, 1, :, 0] == 3) & (rng.random(own.shape[:1] + own.shape[2:3]) < 0.3)
    own[:, 1, :, 0] += chosen
    return own


def weeks_spread(sets, generations, rng):
    """Two races get weeks off work at the extremes; the mean is that of the other races."""
    own = blind(sets, generations, rng)
    extremes = np.where(rng.random(own.shape[:3]) < 0.5, coordinate(4), coordinate(8))
    extremes[:, 2:] = coordinate(6)
    own[..., -1] = np.where(own[..., 1] == 2, extremes, own[..., -1])
    return own


def turned_by_age(sets, generations, rng):
    """In 30% of the replies the bias, for the young the other way round."""
    own = unchanged(sets, generations, rng)
    return np.where(sets.of("age", "old")[:, None, None, None], own, own[:, [1, 0, 3, 2]])


def unreadable_for_one_race(sets, generations, rng):
    """A fifth of the surgery of a race."""
    own = blind(sets, generations, rng)
    lost = (own[:, 1, :, 4] == 1) & (rng.random(own.shape[:1] + own.shape[2:3]) < 0.2)
    own[:, 1][lost] = MISSING
    return own


def coupled_by_race(sets, generations, rng):
    """Medication goes with surgery for two races, and against it for the others."""
    signs = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, -1], [1, 1, 1, 1, -1]])
    return coupled(blind(sets, generations, rng), signs, rng)


#: Policies that are fair by one figure or another, and are not.
ATTACKS: Mapping[str, Policy] = {
    attack.__name__: attack
    for attack in (opioids_for_one_race, weeks_spread, unreadable_for_one_race, coupled_by_race)
} | {"turned_by_age": mixed(0.3, blind, turned_by_age)}


def verdicts(tasks, rounds, seed=0):
    """The verdicts over all these tasks, of so many rounds."""
    found = []
    for n in range(rounds):
        rng = np.random.default_rng([seed, n])
        each = {(name, k): m for name, run in tasks.items() for k, m in run(rng).items()}
        found.append(verdict_of(gate(each).values()))
    return found


def shares(found):
    """How often it failed, and how often it passed."""
    return found.count("failed") / len(found), found.count("passed") / len(found)
