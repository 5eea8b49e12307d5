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


def _violation(decision: Decision) -> float:
    return VIOLATED if decision.violations.dharma else 1.0


def _dharma(decision: Decision) -> float:
    return VIOLATED if decision.violations.dharma else decision.dharma


def _mean(decision: Decision) -> float:
    violated = decision.violations.dharma or decision.violations.ahimsa
    return VIOLATED if violated else (decision.dharma + decision.ahimsa) / 2


REWARDS: Mapping[RewardMode, Callable[[Decision], float]] = {
    "violation": _violation,
    "dharma": _dharma,
    "mean": _mean,
    "policy": lambda decision: decision.combined,
    "judge_only": lambda decision: decision.judge_only,
    "policy_only": lambda decision: decision.policy_only,
}
assert set(REWARDS) == set(get_args(RewardMode))

#: The reward of a reply that cannot be read: below everything that any mode can give.
UNREADABLE = -2.0
