"""Every environment in every adapter: the same rollouts get the same rewards, failures included.

environment.score     a value, or None with the failure
TRL                   the same
NeMo-RL's actor       the value, or the mean of the prompt's valid ones
NeMo Gym's server     the same number; what failed is masked, with its kind and its reason
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from environments.base import Failure, Message, PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.exports.gym.sets import GYM_KINDS, Answer, Sets
from equipoise.exports.task import RewardSettings
from equipoise.run.rollouts import write_rollouts
from equipoise.train.local.reward import reward_function
from equipoise.train.nemo_rl.scoring import StepScorer, metadata_of
from equipoise.train.stages.job import FailureMonitor
from tests.environments.test_contract import SUBJECTS, Subject, controls

DOWN = Failure("rate_limit", "HTTP 429")


class Unreliable(Environment):
    """An environment to which now and then a server does not answer: at every third reply."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.name, self.scope = environment.name, environment.scope

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        scores = self._environment.score(rollouts)
        return [
            Score(None, error=DOWN) if sum(rollout.completion.encode()) % 3 == 0 else score
            for rollout, score in zip(rollouts, scores, strict=True)
        ]

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Any:
        return self._environment.measure(rollouts, scores)


@dataclass
class Case:
    """An environment, rollouts for one step and what one call of `score` says of them."""

    environment: Environment
    rollouts: list[Rollout]
    reference: Path
    scores: list[Score] = field(init=False)

    def __post_init__(self) -> None:
        self.scores = self.environment.score(self.rollouts)

    @property
    def records(self) -> list[PromptRecord]:
        one_of_each = {rollout.prompt_id: rollout for rollout in self.rollouts}
        return [
            PromptRecord(r.prompt_id, "t", (asking(r),), r.set_id, "train", r.metadata)
            for r in one_of_each.values()
        ]


def asking(rollout: Rollout) -> Message:
    return Message(role="user", content=rollout.prompt)


def step_of(subject: Subject) -> list[Rollout]:
    """Every reply twice, so that every prompt has several; as many of each."""
    texts = [*subject.keeps, *subject.breaks][:12]
    once = subject.rollouts(texts)
    again = [replace(r, completion=o.completion) for r, o in zip(once, once[::-1], strict=True)]
    rollouts = [*once, *again]
    assert len(set(Counter(rollout.prompt_id for rollout in rollouts).values())) == 1
    return rollouts


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


@pytest.fixture(params=[False, True], ids=["reliable", "unreliable"])
def case(request: pytest.FixtureRequest, subject: Subject, tmp_path: Path) -> Case:
    reference = tmp_path / "reference.jsonl"
    write_rollouts(reference, [*subject.rollouts(subject.keeps), *controls(subject.keeps)])
    built = subject.build()
    environment = Unreliable(built) if request.param else built
    made = Case(environment, step_of(subject), reference)
    failed = [score.value is None for score in made.scores]
    assert not request.param or (any(failed) and not all(failed))
    return made


def through_trl(case: Case) -> list[float | None]:
    records = case.records
    place = {record.id: n for n, record in enumerate(records)}
    prompts = [record.messages[0]["content"] for record in records]
    monitor = FailureMonitor(max_rate=1.0, window=1)
    score = reward_function(
        case.environment, records, prompts, monitor, lambda _: None, lambda *_: None
    )
    return score(
        completions=[rollout.completion for rollout in case.rollouts],
        index=[place[rollout.prompt_id] for rollout in case.rollouts],
    )


def through_nemo_rl(case: Case) -> list[float]:
    of = {record.id: record for record in case.records}
    logs = [[asking(r), Message(role="assistant", content=r.completion)] for r in case.rollouts]
    metadata = [metadata_of(of[rollout.prompt_id]) for rollout in case.rollouts]
    return StepScorer(case.environment).rewards(logs, metadata)


async def through_nemo_gym(case: Case) -> list[Answer]:
    """One request for each rollout, in an order of its own."""
    number = Counter(rollout.prompt_id for rollout in case.rollouts)
    settings = RewardSettings(
        environment="", prompts=Path(), reference=case.reference, generations=max(number.values())
    )
    sets = Sets(case.environment, case.records, settings)
    seen: Counter[str] = Counter()
    asked: list[tuple[str, int, int, str]] = []
    for rollout in case.rollouts:
        asked.append((rollout.prompt_id, seen[rollout.prompt_id], 0, rollout.completion))
        seen[rollout.prompt_id] += 1
    shuffled = random.Random(0).sample(range(len(asked)), len(asked))
    answers = await asyncio.gather(*(sets.ask(*asked[n]) for n in shuffled))
    return [answer for _, answer in sorted(zip(shuffled, answers, strict=True), key=first)]


def first(pair: tuple[int, Answer]) -> int:
    return pair[0]


def test_trl_gets_what_score_gives(case: Case) -> None:
    assert through_trl(case) == [score.value for score in case.scores]


def test_nemo_rl_gets_it_and_siblings_means_for_failures(case: Case) -> None:
    for reward, rollout, score in zip(
        through_nemo_rl(case), case.rollouts, case.scores, strict=True
    ):
        if score.value is not None:
            assert reward == score.value
        else:
            assert reward == pytest.approx(mean_of_siblings(case, rollout))


def mean_of_siblings(case: Case, rollout: Rollout) -> float:
    values = [
        score.value
        for other, score in zip(case.rollouts, case.scores, strict=True)
        if other.prompt_id == rollout.prompt_id and score.value is not None
    ]
    return sum(values) / len(values) if values else 0.0


def test_nemo_gym_gets_the_rewards_of_nemo_rl_with_failures_masked(case: Case) -> None:
    answers = asyncio.run(asyncio.wait_for(through_nemo_gym(case), 60))
    assert [answer.reward for answer in answers] == pytest.approx(through_nemo_rl(case), abs=1e-15)
    for answer, score in zip(answers, case.scores, strict=True):
        assert answer.components == score.components
        if score.error:
            assert answer.failure_kind == GYM_KINDS.get(score.error.kind, score.error.kind)
            assert answer.failure_reason == score.error.text
        else:
            assert (answer.failure_kind, answer.reward) == (None, score.value)
