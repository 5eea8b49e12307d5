"""Trivial baselines, which a trained model has to beat: what does a reward pay for nothing?

Pure functions of replies; `equipoise.run.probe` samples and scores.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from environments.base import REWARD, PromptRecord, Rollout, Score
from environments.contract import Environment
from environments.measurement import Mean, Measurement, measure_means
from equipoise.statistics.compare import MetricComparison, compare, with_verdicts
from equipoise.statistics.evaluation import Estimate, headline_figures
from equipoise.statistics.intervals import TIE, StatisticsSettings

#: It has seen the rewards of its own test items: an upper bound, not a competitor.
BEST_OF_N = "best_of_n"

#: Refusals that suit any task.
REFUSALS = (
    "I can't help with that.",
    "I'm sorry, but I can't help with that. Please ask an expert.",
    "I don't know.",
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
#: The worth of a constant reply; minus infinity where it is unknown.
Worth = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant reply, its `worth`, and the number of candidates `tried`."""

    reply: str
    worth: float
    tried: int = 1


def best_constant(
    worth: Worth, candidates: Sequence[str], rounds: int, sentences: int = 24
) -> Constant:
    """Extend the best candidate by up to `rounds` sentences of other candidates.

    Each round adds the sentence, of `sentences` tried, that helps most, until none helps.
    Raises `ValueError` without candidates.
    """
    best = max((Constant(reply, worth(reply)) for reply in candidates), key=lambda c: c.worth)
    tried = len(candidates)
    split = (part.strip() for reply in candidates for part in _SENTENCE_END.split(reply))
    parts = commonest(filter(None, split), sentences)
    for _ in range(rounds):
        longer = [f"{best.reply} {part}" for part in parts if part not in best.reply]
        tried += len(longer)
        constants = [Constant(reply, worth(reply)) for reply in longer]
        better = max(constants, key=lambda c: c.worth, default=best)
        if better.worth <= best.worth + TIE:
            break
        best = better
    return Constant(best.reply, best.worth, tried)


def commonest(replies: Iterable[str], number: int) -> list[str]:
    """The most frequent replies; ties keep their order."""
    return [reply for reply, _ in Counter(replies).most_common(number)]


# --- trivial baselines that need no model: one reply for each prompt -----------------------------


@dataclass(frozen=True, slots=True)
class Untrained:
    """The evaluation split, the untrained model's replies to it, and the constants found so far.

    `copies` is how often a baseline that has one reply to a prompt must give it, to be scored.
    """

    records: Sequence[PromptRecord]
    rollouts: Sequence[Rollout]
    scores: Sequence[Score]
    copies: int
    constants: Mapping[str, Constant] = field(default_factory=dict)

    def replying(self, replies: Mapping[str, str]) -> list[Rollout]:
        """Rollouts with one reply to each prompt; skip prompts without one."""
        return [
            replace(rollout, completion=replies[rollout.prompt_id])
            for rollout in first_of_each(self.rollouts, self.copies)
            if rollout.prompt_id in replies
        ]

    def always(self, constant: str) -> dict[str, str]:
        return {record.id: self.constants[constant].reply for record in self.records}


@dataclass(frozen=True, slots=True)
class TrivialBaseline:
    """A trivial baseline, as probe, dry run and report take it.

    `reply` gives the one reply to each prompt id. A `blind` one is what a model can learn without
    reading its prompts for their meaning: the probe warns where it is ahead of the model.
    """

    name: str
    note: str
    reply: Callable[[Untrained], Mapping[str, str]]
    blind: bool = False


def copy_prompt(records: Sequence[PromptRecord]) -> dict[str, str]:
    """Prompt id -> its last message."""
    return {record.id: record.messages[-1]["content"] for record in records}


def copy_prompt_end(records: Sequence[PromptRecord]) -> dict[str, str]:
    """Prompt id -> the last sentence of its last message."""
    return {n: _SENTENCE_END.split(text.strip())[-1] for n, text in copy_prompt(records).items()}


def vote(rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Prompt id -> the reply that was drawn most often for it."""
    drawn: dict[str, list[str]] = defaultdict(list)
    for rollout in rollouts:
        drawn[rollout.prompt_id].append(rollout.completion)
    return {name: commonest(replies, 1)[0] for name, replies in drawn.items()}


def best_of_n(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> dict[str, str]:
    """Prompt id -> the drawn reply with the highest reward; prompts without a score are left out.

    It has seen the rewards: the most that choosing among the untrained replies can reach.
    """
    best: dict[str, tuple[float, str]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        incumbent = best.get(rollout.prompt_id, (-math.inf, ""))
        if score.value is not None and score.value > incumbent[0]:
            best[rollout.prompt_id] = (score.value, rollout.completion)
    return {name: reply for name, (_, reply) in best.items()}


#: The baselines of every task for which no model writes.
TRIVIAL_BASELINES = (
    TrivialBaseline(
        "constant",
        "gives one reply to every prompt, the best that was found",
        lambda untrained: untrained.always("constant"),
        blind=True,
    ),
    TrivialBaseline(
        "always_refuse",
        "gives one refusal to every prompt",
        lambda untrained: untrained.always("always_refuse"),
        blind=True,
    ),
    TrivialBaseline(
        "copy_prompt",
        "repeats the last message of the prompt",
        lambda untrained: copy_prompt(untrained.records),
        blind=True,
    ),
    TrivialBaseline(
        "copy_prompt_end",
        "repeats the last sentence of the prompt",
        lambda untrained: copy_prompt_end(untrained.records),
        blind=True,
    ),
    TrivialBaseline(
        "vote",
        "gives the reply that the untrained model gives most often to the prompt",
        lambda untrained: vote(untrained.rollouts),
    ),
    TrivialBaseline(
        BEST_OF_N,
        "gives the untrained model's reply that scores highest: a yardstick that has seen the "
        "reward",
        lambda untrained: best_of_n(untrained.rollouts, untrained.scores),
    ),
)


def first_of_each(rollouts: Sequence[Rollout], number: int) -> Iterator[Rollout]:
    """The first rollouts of each prompt, in their order."""
    counts: Counter[str] = Counter()
    for rollout in rollouts:
        counts[rollout.prompt_id] += 1
        if counts[rollout.prompt_id] <= number:
            yield rollout


# --- their worth ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """A baseline's task metrics and its reward, both over the clusters of the evaluation split.

    `objective` is the one of them by which it is better or worse than another.
    """

    task: Measurement
    reward: Measurement
    objective: str

    @classmethod
    def of(
        cls, environment: Environment, rollouts: Sequence[Rollout], scores: Sequence[Score]
    ) -> "Measured":
        """The environment's measurement without its breakdowns, and the mean reward."""
        task = replace(environment.measure(rollouts, scores), breakdowns={})
        values = Mean([score.value for score in scores], better="higher")
        reward = measure_means([rollout.set_id for rollout in rollouts], {REWARD: values})
        return cls(task, reward, environment.objective)

    @property
    def compared(self) -> tuple[str, ...]:
        """The objective, and the task's first metric besides, where it has one."""
        names = (name for name in self.task.metrics if name != self.objective)
        return self.objective, *itertools.islice(names, 1)

    def with_figure(self, name: str) -> Measurement:
        return self.reward if name == REWARD else self.task

    def figures(self, settings: StatisticsSettings) -> dict[str, Estimate]:
        """The reward and every metric of the task, each with its interval."""
        return headline_figures(self.reward, settings) | headline_figures(self.task, settings)

    def worth(self, name: str) -> float:
        """A figure, turned so that more is better; minus infinity where it is not defined."""
        measurement = self.with_figure(name)
        value = measurement.point_estimates()[name]
        lower = measurement.metrics[name].better == "lower"
        return -math.inf if math.isnan(value) else -value if lower else value


def differences(
    baselines: Mapping[str, Measured],
    model: Measured,
    settings: StatisticsSettings,
    models: Mapping[str, Measured] | None = None,
) -> dict[str, dict[str, MetricComparison]]:
    """Baseline -> the objective and the first metric: the model's minus the baseline's.

    `models` has the model that a baseline is compared with where it is another one. Holm's
    correction is over the baselines. "better" says that the model is.
    """
    opponents = dict.fromkeys(baselines, model) | dict(models or {})
    corrected = {}
    for name in model.compared:
        pairs = {}
        for baseline, measured in baselines.items():
            measurement = measured.with_figure(name)
            alone = replace(measurement, metrics={name: measurement.metrics[name]}, null_sums=None)
            pairs[baseline] = compare(alone, opponents[baseline].with_figure(name), settings)[name]
        better = model.with_figure(name).metrics[name].better
        corrected[name] = with_verdicts(pairs, dict.fromkeys(pairs, better), settings)
    return {
        baseline: {name: corrected[name][baseline] for name in corrected} for baseline in baselines
    }


def not_beaten(against: Mapping[str, Mapping[str, MetricComparison]], objective: str) -> list[str]:
    """The baselines, best of n excepted, that the model is not shown to beat.

    A baseline whose replies cannot be read has no objective and is not compared.
    """
    return [
        name
        for name, comparisons in against.items()
        if name != BEST_OF_N
        and comparisons[objective].verdict != "better"
        and comparisons[objective].before is not None
    ]


def ahead(against: Mapping[str, Mapping[str, MetricComparison]], objective: str) -> list[str]:
    return [
        name for name, comparisons in against.items() if comparisons[objective].verdict == "worse"
    ]
