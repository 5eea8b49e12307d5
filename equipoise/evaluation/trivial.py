"""Policies without skill, which a trained model has to beat: what does a reward pay for nothing?

Pure functions of replies; `equipoise.stages.probe` samples and scores.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from environments.base import Environment, PromptRecord, Rollout, Score
from environments.measurement import Mean, Measurement, measure_means
from equipoise.evaluation.compare import MetricComparison, compare, with_verdicts
from equipoise.evaluation.evaluate import Figures, headline_figures
from equipoise.evaluation.statistics import TIE, StatisticsSettings

REWARD = "reward"
#: It has seen the reward of the very items that it is measured on: a yardstick, no opponent.
BEST_OF_N = "best_of_n"

#: Ways to decline that suit any task.
DECLINING = (
    "I can't help with that.",
    "I'm sorry, but I can't help with that. Please ask an expert.",
    "I don't know.",
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
#: The mean reward of a reply that is given to every prompt; minus infinity where none was scored.
Pay = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Constant:
    """A reply that is given to every prompt, its mean `reward`, and how many were `tried`."""

    reply: str
    reward: float
    tried: int = 1


def best_constant(
    pay: Pay, candidates: Sequence[str], rounds: int, sentences: int = 24
) -> Constant:
    """The candidate that earns most, with up to `rounds` more sentences of candidates behind it.

    Greedy: each round adds the one of so many `sentences` that helps most, until none helps.
    Raises `ValueError` without candidates.
    """
    best = max((Constant(reply, pay(reply)) for reply in candidates), key=lambda c: c.reward)
    tried = len(candidates)
    parts = _sentences(candidates, sentences)
    for _ in range(rounds):
        longer = [f"{best.reply} {part}" for part in parts if part not in best.reply]
        tried += len(longer)
        paid = [Constant(reply, pay(reply)) for reply in longer]
        better = max(paid, key=lambda c: c.reward, default=best)
        if better.reward <= best.reward + TIE:
            break
        best = better
    return Constant(best.reply, best.reward, tried)


def commonest(replies: Iterable[str], number: int) -> list[str]:
    """The replies that occur most often, the first of equals first."""
    return [reply for reply, _ in Counter(replies).most_common(number)]


def _sentences(replies: Sequence[str], number: int) -> list[str]:
    parts = (part.strip() for reply in replies for part in _SENTENCE_END.split(reply))
    return commonest(filter(None, parts), number)


# --- policies that reply by themselves: one reply for each prompt --------------------------------


def copying(records: Sequence[PromptRecord]) -> dict[str, dict[str, str]]:
    """Name of a policy -> prompt id -> what it copies: the last message, and its last sentence."""
    asked = {record.id: record.messages[-1]["content"] for record in records}
    ends = {name: _SENTENCE_END.split(text.strip())[-1] for name, text in asked.items()}
    return {"copying": asked, "copying_the_end": ends}


def vote(rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Prompt id -> the reply that was drawn most often for it."""
    return {name: commonest(replies, 1)[0] for name, replies in _by_prompt(rollouts).items()}


def best_of_n(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> dict[str, str]:
    """Prompt id -> the drawn reply with the highest reward; prompts without a score are left out.

    This one has seen the reward: it is what choosing among the untrained model's replies can reach.
    """
    best: dict[str, tuple[float, str]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        known = best.get(rollout.prompt_id, (-math.inf, ""))
        if score.value is not None and score.value > known[0]:
            best[rollout.prompt_id] = (score.value, rollout.completion)
    return {name: reply for name, (_, reply) in best.items()}


def first_of_each(rollouts: Sequence[Rollout], number: int) -> Iterator[Rollout]:
    """The first rollouts of each prompt, in their order."""
    taken: Counter[str] = Counter()
    for rollout in rollouts:
        taken[rollout.prompt_id] += 1
        if taken[rollout.prompt_id] <= number:
            yield rollout


def _by_prompt(rollouts: Sequence[Rollout]) -> Mapping[str, list[str]]:
    replies: dict[str, list[str]] = defaultdict(list)
    for rollout in rollouts:
        replies[rollout.prompt_id].append(rollout.completion)
    return replies


# --- what they are worth -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """A policy's task metrics and its reward, both over the clusters of the evaluation split."""

    task: Measurement
    reward: Measurement

    @classmethod
    def of(
        cls, environment: Environment, rollouts: Sequence[Rollout], scores: Sequence[Score]
    ) -> "Measured":
        """The environment's measurement without its breakdowns, and the mean reward."""
        task = replace(environment.measure(rollouts, scores), breakdowns={})
        values = Mean([score.value for score in scores], better="higher")
        return cls(task, measure_means([rollout.set_id for rollout in rollouts], {REWARD: values}))

    @property
    def first(self) -> str:
        """The task's first metric, by which policies are compared besides the reward."""
        return next(iter(self.task.metrics))


def figures_of(policy: Measured, settings: StatisticsSettings) -> dict[str, Figures]:
    """The reward and every metric of the task, each with its interval."""
    return headline_figures(policy.reward, settings) | headline_figures(policy.task, settings)


def differences(
    policies: Mapping[str, Measured], model: Measured, settings: StatisticsSettings
) -> dict[str, dict[str, MetricComparison]]:
    """Policy -> the reward and the first metric, that of the model minus that of the policy.

    Holm's correction is over the policies. "better" says that the model is.
    """
    rewards = {name: compare(p.reward, model.reward, settings) for name, p in policies.items()}
    metric = model.first
    alone = {
        name: compare(_only(p.task, metric), model.task, settings) for name, p in policies.items()
    }
    compared = {REWARD: rewards, metric: alone}
    directions = {
        REWARD: model.reward.metrics[REWARD].better,
        metric: model.task.metrics[metric].better,
    }
    corrected = {
        name: with_verdicts(
            {policy: each[name] for policy, each in pairs.items()},
            dict.fromkeys(pairs, directions[name]),
            settings,
        )
        for name, pairs in compared.items()
    }
    return {policy: {name: corrected[name][policy] for name in compared} for policy in policies}


def not_beaten(against: Mapping[str, Mapping[str, MetricComparison]]) -> list[str]:
    """The policies, but for best of n, whose reward is not shown to be below the model's."""
    return [
        name
        for name, each in against.items()
        if name != BEST_OF_N and each[REWARD].verdict != "better"
    ]


def ahead(against: Mapping[str, Mapping[str, MetricComparison]]) -> list[str]:
    """The policies whose reward is shown to be above the model's."""
    return [name for name, each in against.items() if each[REWARD].verdict == "worse"]


def _only(measurement: Measurement, metric: str) -> Measurement:
    metrics = {metric: measurement.metrics[metric]}
    return replace(measurement, metrics=metrics, null_sums=None)
