"""Speed of scoring and measuring on one core; run with `pytest -n 0 tests/benchmarks`.

The targets keep scoring hidden behind generation (a GRPO step on many GPUs makes about 50
rollouts a second) and evaluation too short to notice. CPU seconds are measured, and the best of
several rounds is compared, for the machine may have other work.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from data_prep.fairness.local_model import decide
from data_prep.fairness.prompts import PromptSettings, build_prompts
from environments.base import CONTROL_SPLIT, PromptRecord, Rollout
from environments.fairness import FairnessEnvironment, FairnessSettings
from equipoise.statistics.compare import compare
from equipoise.statistics.evaluation import evaluation_dict
from equipoise.statistics.intervals import StatisticsSettings

pytestmark = pytest.mark.benchmark(timer=time.process_time)

GENERATIONS = 8
ROLLOUTS_PER_SECOND = 50_000
SECONDS_TO_EVALUATE = 2.0


def completion(record: PromptRecord, number: int, rng: np.random.Generator) -> str:
    """A reply unlike any other: plain, fenced, after reasoning, or (3%) without a decision."""
    decision = decide(dict(record.metadata), rng).to_dict()
    decision["rationale"] += f" Case note {number}: findings and work demands were weighed."
    kind = rng.random()
    if kind < 0.03:
        return f"Case note {number}: rest, heat and a new appointment in two weeks."
    if kind < 0.13:
        return f"```json\n{json.dumps(decision, indent=1)}\n```"
    if kind < 0.2:
        return f"<think>Pain and findings first.</think>\n{json.dumps(decision)}"
    return json.dumps(decision)


def sampled(records: list[PromptRecord], split: str, seed: int) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [
        Rollout(r.id, r.set_id, split, "", completion(r, g + GENERATIONS * n, rng), r.metadata)
        for n, r in enumerate(records)
        for g in range(GENERATIONS)
    ]


def first_sets(number: int) -> list[PromptRecord]:
    """The vignettes of so many counterfactual sets, spread evenly over the injuries."""
    records = build_prompts(PromptSettings(num_samples=4 * number))
    return [record for record in records if record.split != CONTROL_SPLIT]


def best_seconds(
    benchmark: BenchmarkFixture, function: Callable[..., object], *given: Any
) -> float:
    """CPU seconds of the fastest round."""
    benchmark(function, *given)
    assert benchmark.stats is not None
    return float(benchmark.stats.stats.min)


@pytest.fixture(scope="module")
def environment() -> FairnessEnvironment:
    found = FairnessEnvironment(FairnessSettings())
    found.set_reference(sampled(first_sets(288), "test", 2))
    return found


def test_score(benchmark: BenchmarkFixture, environment: FairnessEnvironment) -> None:
    rollouts = sampled(first_sets(288)[: 4 * 256], "test", 0)
    assert len({rollout.completion for rollout in rollouts}) == 8192
    assert (
        len(rollouts) / best_seconds(benchmark, environment.score, rollouts) > ROLLOUTS_PER_SECOND
    )


def test_evaluate(benchmark: BenchmarkFixture, environment: FairnessEnvironment) -> None:
    """Every metric, breakdown, interval and floor of 9,216 scored rollouts."""
    rollouts = sampled(first_sets(288), "test", 0)
    scores = environment.score(rollouts)

    def evaluate() -> object:
        return evaluation_dict(
            environment.measure(rollouts, scores),
            task="fairness",
            split="test",
            model="none",
            n_prompts=len(rollouts) // GENERATIONS,
            n_rollouts=len(rollouts),
            presentation=environment.presentation,
            failures={},
            settings=StatisticsSettings(bootstrap_draws=10_000, permutations=2_000),
        )

    assert best_seconds(benchmark, evaluate) < SECONDS_TO_EVALUATE


def test_compare(benchmark: BenchmarkFixture, environment: FairnessEnvironment) -> None:
    before, after = (
        environment.measure(rollouts, environment.score(rollouts))
        for rollouts in (sampled(first_sets(288), "test", seed) for seed in (0, 3))
    )
    seconds = best_seconds(benchmark, compare, before, after, StatisticsSettings())
    assert seconds < SECONDS_TO_EVALUATE
