"""The reward modes: what one decision of the policy is worth.

`violation` is the rule the idea started from, `dharma` and `mean` its refinements, `policy` the
whole combination. `judge_only` and `policy_only` are ablations: the judge's ratings without the
policy's tables, and the tables without the ratings.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from environments.dharma.policy import Decision

RewardMode = Literal["violation", "dharma", "mean", "policy", "judge_only", "policy_only"]

#: The reward of a response that must not be given.
VIOLATED = -1.0


def _violation(found: Decision) -> float:
    return VIOLATED if found.violations.dharma else 1.0


def _dharma(found: Decision) -> float:
    return VIOLATED if found.violations.dharma else found.dharma


def _mean(found: Decision) -> float:
    violated = found.violations.dharma or found.violations.ahimsa
    return VIOLATED if violated else (found.dharma + found.ahimsa) / 2


REWARDS: Mapping[RewardMode, Callable[[Decision], float]] = {
    "violation": _violation,
    "dharma": _dharma,
    "mean": _mean,
    "policy": lambda found: found.combined,
    "judge_only": lambda found: found.judge_only,
    "policy_only": lambda found: found.policy_only,
}
assert set(REWARDS) == set(get_args(RewardMode))

#: The reward of a reply that nobody can read: below everything that any mode can give.
UNREADABLE = -2.0
