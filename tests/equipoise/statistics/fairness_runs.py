"""Simulated runs of the fairness task: the invented clinician answers the test sets of many seeds.

Every seed deals out cases, patients and splits anew, as a run does, so severity and the number of
emergencies are as random as the design makes them. `bias` scales what a race adds to the urgency.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import yaml

from data_prep.fairness.local_model import AGE, BIAS, OCCUPATION, WEEKS_OFF, urgency
from data_prep.fairness.prompts import PromptSettings, build_prompts
from environments.base import TEST_SPLIT
from environments.fairness.decision import coordinate
from environments.fairness.metrics import measure_disparity
from environments.fairness.sets import MISSING, Anchors, DecisionSets, Points
from environments.fairness.spine import FORM, RACES, SPINE
from environments.measurement import Array
from equipoise.statistics.compare import Halves, compare
from equipoise.statistics.intervals import StatisticsSettings
from tests.environments.fairness.samples import same_words

_TASK = Path(__file__).parents[3] / "nemo_configs/tasks"
_LOCAL = yaml.safe_load((_TASK / "fairness.local.yaml").read_text())["equipoise"]
GENERATIONS: int = _LOCAL["evaluation"]["generations"]
SETTINGS = StatisticsSettings(bootstrap_draws=1_000, permutations=500)
#: Of each scored field of `clinician.decide`: the latent level at urgency 0, what urgency adds, and
#: where the next level begins.
_FIELDS = (
    (1.8, 1.1, (0.5, 1.5, 2.5, 3.5)),
    (0.9, 0.65, (0.5, 1.5)),
    (0.7, 1.0, (0.0,)),
    (0.7, 0.5, (0.5, 1.5)),
    (-0.7, 1.0, (0.0,)),
)
_NOISE = 0.5
SCORED = len(FORM.scored)
_MEDICATION, _WORK, _SURGERY = 0, 1, 4
_WEEKS = np.vectorize(coordinate)(WEEKS_OFF)  # [work status, equally likely]
_cdf = np.vectorize(NormalDist().cdf, otypes=[float])


@dataclass(frozen=True)
class Sets:
    """The test sets of one seed: metadata, and the urgency [S] of each without its race."""

    names: tuple[str, ...]
    metadata: tuple[Mapping[str, Any], ...]
    urgency: Array

    def decisions(self, generations, rng, bias=1.0):
        """As many decisions for every variant, [S, R, G, P]."""
        z = self.urgency[:, None] + bias * np.array([BIAS[race] for race in RACES])
        fields = []
        for start, slope, steps in _FIELDS:
            chances = _cdf((start + slope * z[..., None] - np.array(steps)) / (slope * _NOISE))
            drawn = rng.random((*z.shape, generations, 1))
            fields.append((drawn < chances[:, :, None, :]).sum(axis=-1))
        fields.append(_WEEKS[fields[_WORK], rng.integers(3, size=(*z.shape, generations))])
        return np.stack(fields, axis=-1).astype(np.float32)

    def of(self, key, value):
        """Which sets have this in their metadata, [S]."""
        return np.array([one[key] == value for one in self.metadata])


@cache
def sets_of(seed):
    """The test sets of the local run with this seed, with the metadata that guards depend on."""
    data = _LOCAL["data"] | {"seed": seed, "leave_out": ["falling_load"]}
    records = build_prompts(PromptSettings.model_validate(data))
    first = {r.set_id: r.metadata for r in reversed(records) if r.split == TEST_SPLIT}
    bare = [urgency({k: str(v) for k, v in m.items() if k != "race"}) for m in first.values()]
    kept = ("severity", "occupation", "age", "emergency", "hold_out")
    known = tuple({key: m[key] for key in kept} for m in first.values())
    return Sets(tuple(first), known, np.array(bare))


#: What a model decides: the sets, generations, random numbers -> points.
Policy = Callable[[Sets, int, np.random.Generator], Points]


def unchanged(sets, generations, rng):
    """The clinician as he is."""
    return sets.decisions(generations, rng)


def blind(sets, generations, rng):
    """The clinician who takes every patient for one of any race."""
    values = len(RACES)
    everybody = sets.decisions(values * generations, rng)
    races = rng.integers(values, size=(len(sets.names), values, generations))
    own = np.arange(values * generations).reshape(values, generations)
    return everybody[np.arange(len(sets.names))[:, None, None], races, own]


def coupled(points, signs, rng):
    """Couple the fields of the replies of each set and race by rank; no field's values change."""
    found = points.copy()
    for s, r in itertools.product(*map(range, points.shape[:2])):
        for field, sign in enumerate(signs[r]):
            found[s, r, :, field] = np.sort(found[s, r, :, field])[::sign]
        found[s, r] = found[s, r, rng.permutation(points.shape[2])]
    return found


def _in_part(share, other):
    """In this share of the replies the clinician takes the patients of a set for others."""

    def decide(sets, generations, rng):
        own = sets.decisions(generations, rng)
        mistaken = replace(sets, urgency=other(sets)).decisions(generations, rng)
        return np.where(rng.random(own.shape[:3])[..., None] < share, mistaken, own)

    return decide


def _field_lowered(field, share):
    """In this share of the replies a field is one level lower."""

    def decide(sets, generations, rng):
        own = sets.decisions(generations, rng)
        own[..., field] -= (rng.random(own.shape[:3]) < share) & (own[..., field] > 0)
        return own

    return decide


def _repetitive(sets, generations, rng):
    own = sets.decisions(generations, rng)
    return np.where(rng.random(own.shape[:3])[..., None] < 0.2**0.5, own[:, :, :1], own)


def _unreadable(sets, generations, rng):
    own = sets.decisions(generations, rng)
    own[rng.random(own.shape[:3]) < 0.04] = MISSING
    return own


#: Policies that have lost twice the margin of a guard, at the margins of the task.
LOST_TWICE: Mapping[str, Policy] = {
    "clinical_slope": _in_part(0.2, lambda s: np.full_like(s.urgency, s.urgency.mean())),
    "occupation_effect": _in_part(
        0.2,
        lambda s: (
            s.urgency
            - s.of("occupation", "blue-collar")
            * (OCCUPATION["blue-collar"] - OCCUPATION["white-collar"])
        ),
    ),
    "age_effect": _in_part(
        0.2, lambda s: s.urgency - s.of("age", "old") * (AGE["old"] - AGE["young"])
    ),
    "emergency_surgery": _field_lowered(_SURGERY, 0.05),  # of a rate of .8
    "mean_invasiveness": _field_lowered(_MEDICATION, 0.2),  # of 4.5, where 9 of 10 have any
    "decision_spread": _repetitive,
    "parse_rate": _unreadable,
}


def guarded(sets, points):
    """The measurement of a stage, its guarded metrics alone."""
    mean = np.full(len(sets.names), np.nan)
    position = np.empty((0, 3), dtype=np.intp)
    of_stage = DecisionSets(sets.names, points, position, sets.metadata, SCORED)
    unknown = np.full((*points.shape[:2], 1, points.shape[3]), MISSING, dtype=np.float32)
    anchors = Anchors(mean, mean, mean, unknown)
    found = measure_disparity(of_stage, anchors, SPINE, same_words(points))
    metrics = {name: metric for name, metric in found.metrics.items() if metric.guard}
    return replace(found, metrics=metrics, breakdowns={}, null_sums=None)


def guards_of(after, rounds, generations):
    """The comparison of the clinician with a policy, of so many seeds."""
    found = []
    for seed in range(rounds):
        sets, rng = sets_of(seed), np.random.default_rng(seed)
        before, changed = (decide(sets, generations, rng) for decide in (unchanged, after))
        parts = (guarded(sets, before[:, :, n::2]) for n in (0, 1))
        halves = Halves([(next(parts), next(parts))], 0.5)
        pair = (guarded(sets, points) for points in (before, changed))
        found.append(compare(*pair, SETTINGS, halves=halves))
    return found
