"""Speed of retrieval on one core; run with `pytest -n 0 tests/benchmarks`.

The corpus has 125,000 passages of 120 words, as many as MedRAG's textbooks, whose words are as
frequent as in English without its stop words (Zipf's law with an offset). The index is built in a
process of its own, so that its memory can be measured.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from environments.base import Rollout
from environments.rag import RagEnvironment, RagSettings
from environments.rag.retrieval import Bm25

pytestmark = pytest.mark.benchmark(timer=time.process_time)

PASSAGES, WORDS, VOCABULARY = 125_000, 120, 60_000
SECONDS_TO_BUILD, BYTES_TO_BUILD = 60.0, 2e9
QUERIES_PER_SECOND = 1_000
SECONDS_TO_SCORE = 1.5
_WORDS_AT_ONCE = 5_000

BUILD = """
import json, resource, sys, time
from pathlib import Path
from data_prep.rag.index import Source, ensure_index
started = time.process_time()
ensure_index(Source.of_path(Path(sys.argv[1])), Path(sys.argv[2]), None, lambda _: None)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.process_time() - started, peak]))
"""


def words(number: int, rng: np.random.Generator) -> list[str]:
    shares = 1 / (np.arange(VOCABULARY) + 60.0)
    return [f"w{i}" for i in rng.choice(VOCABULARY, size=number, p=shares / shares.sum())]


def passages() -> Iterator[str]:
    rng = np.random.default_rng(0)
    for start in range(0, PASSAGES, _WORDS_AT_ONCE):
        drawn = words(_WORDS_AT_ONCE * WORDS, rng)
        for n in range(_WORDS_AT_ONCE):
            text = " ".join(drawn[n * WORDS : (n + 1) * WORDS])
            yield json.dumps({"id": str(start + n), "text": text}) + "\n"


def queries(number: int, seed: int) -> list[str]:
    drawn = words(number * 8, np.random.default_rng(seed))
    return [" ".join(drawn[n * 8 : (n + 1) * 8]) for n in range(number)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, float]:
    """The folder of the index, the CPU seconds and the peak of memory that it took."""
    folder = tmp_path_factory.mktemp("corpus")
    with (folder / "corpus.jsonl").open("w") as file:
        file.writelines(passages())
    command = [sys.executable, "-c", BUILD, str(folder / "corpus.jsonl"), str(folder / "index")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, peak = json.loads(output)
    return folder / "index", seconds, peak


def test_build(built: tuple[Path, float, float]) -> None:
    _, seconds, peak = built
    print(f"\nindex of {PASSAGES:,} passages: {seconds:.1f} CPU seconds, {peak / 1e9:.2f} GB")
    assert seconds < SECONDS_TO_BUILD
    assert peak < BYTES_TO_BUILD


def test_search(benchmark: BenchmarkFixture, built: tuple[Path, float, float]) -> None:
    index, asked = Bm25(built[0]), queries(768, 1)
    benchmark(index.search, asked, 32)
    assert benchmark.stats is not None
    assert len(asked) / float(benchmark.stats.stats.min) > QUERIES_PER_SECOND


def test_score(benchmark: BenchmarkFixture, built: tuple[Path, float, float]) -> None:
    """256 rollouts of 32 prompts with 768 queries, none of which was searched before."""
    options = dict(zip("ABCD", queries(4, 2), strict=True))
    asked = queries(32 + 3 * 256, 3)
    rollouts = [
        Rollout(
            f"q{n // 8}",
            f"q{n // 8}",
            "train",
            "",
            "\n".join(f"Query {i}: {asked[32 + 3 * n + i - 1]}" for i in (1, 2, 3)),
            {"question": asked[n // 8], "options": options, "gold": "A"},
        )
        for n in range(256)
    ]

    def fresh() -> tuple[tuple[RagEnvironment, list[Rollout]], dict[str, object]]:
        environment = RagEnvironment(RagSettings(index=str(built[0])))
        environment.open()
        return (environment, rollouts), {}

    benchmark.pedantic(
        lambda environment, rollouts: environment.score(rollouts), setup=fresh, rounds=5
    )
    assert benchmark.stats is not None
    assert float(benchmark.stats.stats.min) < SECONDS_TO_SCORE
