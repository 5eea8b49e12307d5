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
ROLLOUTS_PER_SECOND = 15_000
QUESTION = "Does pain fall in adults?"
SENTENCE = "The trial found that pain fell by {:.1f}% in the {} adults who were followed up. "


def completion(number: int, rng: np.random.Generator) -> str:
    """A reply of some 350 characters unlike any other; 5% break the format."""
    first, *others = (SENTENCE.format(rng.uniform(1, 90), number + n) for n in range(4))
    reasoning = "".join((f'"{first.strip()}" ', *others))
    answer = f"<answer>{rng.choice(LABELS)}</answer>"
    if rng.random() < 0.05:
        return f"{reasoning} {answer}"
    return f"<reasoning>\n{reasoning}\n</reasoning>\n\n{answer}"


def sampled() -> list[Rollout]:
    rng = np.random.default_rng(0)
    context = SENTENCE.format(12.5, 60) * 20
    metadata = {"gold": "yes", "context": context, "question": QUESTION}
    return [
        Rollout(f"q{q}", f"q{q}", "test", "", completion(GENERATIONS * q + g, rng), metadata)
        for q in range(QUESTIONS)
        for g in range(GENERATIONS)
    ]


def test_score(benchmark: BenchmarkFixture) -> None:
    """Most of it is the reasons: every word of them is looked at."""
    environment = PubMedQAEnvironment(PubMedQASettings())
    rollouts = sampled()
    benchmark(environment.score, rollouts)
    assert benchmark.stats is not None
    assert len(rollouts) / float(benchmark.stats.stats.min) > ROLLOUTS_PER_SECOND


def test_hostile_replies(benchmark: BenchmarkFixture) -> None:
    """100 kB of tags or of quotes take a fifth of a second at most."""
    environment = PubMedQAEnvironment(PubMedQASettings())
    metadata = {"gold": "yes", "context": "Pain fell.", "question": QUESTION}
    quotes = '""1"pain fell by 1.1.1"' * 5000
    texts = ("</answer><answer>" * 6000, f"<reasoning>{quotes}</reasoning><answer>yes</answer>")
    rollouts = [Rollout(f"q{n}", f"q{n}", "test", "", texts[n % 2], metadata) for n in range(20)]
    benchmark(environment.score, rollouts)
    assert benchmark.stats is not None
    assert float(benchmark.stats.stats.min) / len(rollouts) < 0.2


def test_measure(benchmark: BenchmarkFixture) -> None:
    environment = PubMedQAEnvironment(PubMedQASettings())
    rollouts = sampled()
    scores = environment.score(rollouts)
    benchmark(environment.measure, rollouts, scores)
    assert benchmark.stats is not None
    assert float(benchmark.stats.stats.min) < 1.0
