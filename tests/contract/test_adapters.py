"""Every environment in every adapter: the same rollouts get the same rewards, failures included.

environment.score     a value, or None with the failure
TRL                   the same
NeMo-RL's actor       the value, or the mean of the prompt's valid ones
awaited one by one    the same number, and the score
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from environments.awaited_sets import AwaitedSets
from environments.base import Failure, Message, PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.train.local import reward_function
from equipoise.train.nemo_rl.scoring import StepScorer, metadata_of, to_rollouts
from tests.environments.test_contract import SUBJECTS

DOWN = Failure("rate_limit", "HTTP 429")


class Unreliable(Environment):
    """An environment to which now and then a server does not answer: at every third reply."""

    def __init__(self, environment):
        self._environment = environment
        self.name, self.scope = environment.name, environment.scope

    def score(self, rollouts):
        scores = self._environment.score(rollouts)
        return [
            Score(None, error=DOWN) if sum(rollout.completion.encode()) % 3 == 0 else score
            for rollout, score in zip(rollouts, scores, strict=True)
        ]

    def measure(self, rollouts, scores):
        return self._environment.measure(rollouts, scores)


@dataclass
class Case:
    """An environment, rollouts for one step and what one call of `score` says of them."""

    environment: Environment
    rollouts: list[Rollout]
    scores: list[Score] = field(init=False)

    def __post_init__(self):
        self.scores = self.environment.score(self.rollouts)

    @property
    def records(self):
        one_of_each = {rollout.prompt_id: rollout for rollout in self.rollouts}
        return [
            PromptRecord(r.prompt_id, "t", (asking(r),), r.set_id, "train", r.metadata)
            for r in one_of_each.values()
        ]


def asking(rollout):
    return Message(role="user", content=rollout.prompt)


def step_of(subject):
    """Every reply twice, so that every prompt has several; as many of each."""
    texts = [*subject.keeps, *subject.breaks][:12]
    once = subject.rollouts(texts)
    again = [replace(r, completion=o.completion) for r, o in zip(once, once[::-1], strict=True)]
    rollouts = [*once, *again]
    assert len(set(Counter(rollout.prompt_id for rollout in rollouts).values())) == 1
    return rollouts


@pytest.fixture(params=SUBJECTS)
def subject(request):
    return SUBJECTS[request.param]


@pytest.fixture(params=[False, True], ids=["reliable", "unreliable"])
def case(request, subject):
    built = subject.build()
    environment = Unreliable(built) if request.param else built
    made = Case(environment, step_of(subject))
    failed = [score.value is None for score in made.scores]
    assert not request.param or (any(failed) and not all(failed))
    return made


def through_trl(case):
    records = case.records
    place = {record.id: n for n, record in enumerate(records)}
    score = reward_function(case.environment, records, lambda *_: None)
    return score(
        prompts=[rollout.prompt for rollout in case.rollouts],
        completions=[rollout.completion for rollout in case.rollouts],
        index=[place[rollout.prompt_id] for rollout in case.rollouts],
    )


def through_nemo_rl(case):
    of = {record.id: record for record in case.records}
    logs = [[asking(r), Message(role="assistant", content=r.completion)] for r in case.rollouts]
    metadata = [metadata_of(of[rollout.prompt_id]) for rollout in case.rollouts]
    return StepScorer(case.environment).rewards(to_rollouts(logs, metadata))


async def awaited(case):
    """Each rollout by a call of its own, in a random order."""
    prompts = {(rollout.set_id, rollout.prompt_id) for rollout in case.rollouts}
    size = max(Counter(set_id for set_id, _ in prompts).values())
    generations = len(case.rollouts) // len(prompts)
    sets = AwaitedSets(
        case.environment.score, scope=case.environment.scope, set_size=size, limit=60.0
    )
    shuffled = random.Random(0).sample(range(len(case.rollouts)), len(case.rollouts))
    calls = [sets.ask(case.rollouts[n], generations, n) for n in shuffled]
    rewards = dict(zip(shuffled, await asyncio.gather(*calls), strict=True))
    return [rewards[n] for n in range(len(shuffled))]


def test_trl_gets_what_score_gives(case):
    assert through_trl(case) == [score.value for score in case.scores]


def test_nemo_rl_gets_it_and_siblings_means_for_failures(case):
    for reward, rollout, score in zip(
        through_nemo_rl(case), case.rollouts, case.scores, strict=True
    ):
        if score.value is not None:
            assert reward == score.value
        else:
            assert reward == pytest.approx(mean_of_siblings(case, rollout))


def mean_of_siblings(case, rollout):
    values = [
        score.value
        for other, score in zip(case.rollouts, case.scores, strict=True)
        if other.prompt_id == rollout.prompt_id and score.value is not None
    ]
    return sum(values) / len(values) if values else 0.0


def test_replies_that_come_one_by_one_get_it_too(case):
    rewards = asyncio.run(awaited(case))
    assert [reward.score for reward in rewards] == case.scores
    assert [reward.number for reward in rewards] == pytest.approx(through_nemo_rl(case), abs=1e-15)
