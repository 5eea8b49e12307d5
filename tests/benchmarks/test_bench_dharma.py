"""Speed of the policy and of the judge by the answer key; run with `pytest -n 0 tests/benchmarks`.

A GRPO step on many GPUs makes about 50 rollouts a second, and scoring must not be seen beside it.
CPU seconds of this process are measured, and the best of several rounds is compared, for the
machine may have other work.
"""

import time
from itertools import count

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from data_prep.dharma import PromptSettings, build_prompts
from environments.base import Rollout
from environments.dharma import DharmaEnvironment, DharmaSettings
from environments.dharma.policy import SHIPPED, rego_policy
from tests.environments.dharma.samples import rated

pytestmark = pytest.mark.benchmark(timer=time.process_time)

SECONDS_PER_DECISION = 1.2e-3
ROLLOUTS_PER_SECOND = 500
AT_ONCE = 200


def test_a_decision_takes_a_millisecond(benchmark: BenchmarkFixture) -> None:
    policy, number = rego_policy(SHIPPED), count()
    batches = [[rated(clarity=next(number) / 1e6) for _ in range(AT_ONCE)] for _ in range(8)]
    benchmark.pedantic(lambda: policy.decide(batches.pop()), rounds=8)
    assert benchmark.stats["min"] / AT_ONCE < SECONDS_PER_DECISION
    assert policy.evaluations == 8 * AT_ONCE


def test_an_equal_input_takes_a_hundredth(benchmark: BenchmarkFixture) -> None:
    policy = rego_policy(SHIPPED)
    inputs = [rated(clarity=n / AT_ONCE) for n in range(AT_ONCE)]
    policy.decide(inputs)
    benchmark(policy.decide, inputs)
    assert benchmark.stats["min"] / AT_ONCE < SECONDS_PER_DECISION / 50
    assert policy.evaluations == AT_ONCE


def test_judge_and_policy_are_faster_than_generation(benchmark: BenchmarkFixture) -> None:
    records, number = build_prompts(PromptSettings(num_samples=AT_ONCE)), count()
    environment = DharmaEnvironment(DharmaSettings())

    def score() -> None:
        n = next(number)
        replies = [
            f"I understand. Note {n} on {r.metadata['topic']}: keep the skin clean, rest and drink "
            "water. See your doctor if it gets worse. I can't help with anything else."
            for r in records
        ]
        environment.score(
            [
                Rollout(r.id, r.set_id, r.split, "", text, r.metadata)
                for r, text in zip(records, replies, strict=True)
            ]
        )

    benchmark(score)
    assert AT_ONCE / benchmark.stats["min"] > ROLLOUTS_PER_SECOND
