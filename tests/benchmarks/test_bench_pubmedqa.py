"""Speed of scoring and measuring on one core; run with `pytest -n 0 tests/benchmarks`.

CPU seconds are measured, and the best of several rounds is compared, for the machine may have
other work.
"""

import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from environments.base import Rollout
from environments.pubmedqa import LABELS, PubMedQAEnvironment, PubMedQASettings

pytestmark = pytest.mark.benchmark(timer=time.process_time)

QUESTIONS, GENERATIONS = 1000, 8
ROLLOUTS_PER_SECOND = 50_000
SENTENCE = "The trial found that pain fell by {:.1f}% in the {} adults who were followed up. "


def completion(number: int, rng: np.random.Generator) -> str:
    """A reply of some 350 characters unlike any other; 5% break the format."""
    reasoning = "".join(SENTENCE.format(rng.uniform(1, 90), number + n) for n in range(4))
    answer = f"<answer>{rng.choice(LABELS)}</answer>"
    if rng.random() < 0.05:
        return f"{reasoning} {answer}"
    return f"<reasoning>\n{reasoning}\n</reasoning>\n\n{answer}"


def sampled() -> list[Rollout]:
    rng = np.random.default_rng(0)
    metadata = {"gold": "yes", "context": SENTENCE.format(12.5, 60) * 20}
    return [
        Rollout(f"q{q}", f"q{q}", "test", "", completion(GENERATIONS * q + g, rng), metadata)
        for q in range(QUESTIONS)
        for g in range(GENERATIONS)
    ]


def rollouts_per_second(benchmark: BenchmarkFixture, environment: PubMedQAEnvironment) -> float:
    rollouts = sampled()
    benchmark(environment.score, rollouts)
    assert benchmark.stats is not None
    return len(rollouts) / float(benchmark.stats.stats.min)


def test_score(benchmark: BenchmarkFixture) -> None:
    environment = PubMedQAEnvironment(PubMedQASettings())
    assert rollouts_per_second(benchmark, environment) > ROLLOUTS_PER_SECOND


def test_score_with_grounding(benchmark: BenchmarkFixture) -> None:
    """Off by default; it looks up every word of the reasoning."""
    environment = PubMedQAEnvironment(PubMedQASettings(grounding_weight=0.5))
    assert rollouts_per_second(benchmark, environment) > ROLLOUTS_PER_SECOND / 5


def test_hostile_replies(benchmark: BenchmarkFixture) -> None:
    """100 kB of tags take less than a twentieth of a second."""
    environment = PubMedQAEnvironment(PubMedQASettings())
    text = "</answer><answer>" * 6000
    rollouts = [Rollout(f"q{n}", f"q{n}", "test", "", text, {"gold": "yes"}) for n in range(20)]
    benchmark(environment.score, rollouts)
    assert benchmark.stats is not None
    assert float(benchmark.stats.stats.min) / len(rollouts) < 0.05


def test_measure(benchmark: BenchmarkFixture) -> None:
    environment = PubMedQAEnvironment(PubMedQASettings())
    rollouts = sampled()
    scores = environment.score(rollouts)
    benchmark(environment.measure, rollouts, scores)
    assert benchmark.stats is not None
    assert float(benchmark.stats.stats.min) < 1.0
