"""What NeMo Gym's server takes for a step, over HTTP; run with `pytest -n 0 tests/benchmarks`."""

import random
import time

from tests.contract.test_nemo_gym import (  # noqa: F401  a fixture
    CHOSEN,
    asked,
    drawn,
    gym,
    one_call,
    pytestmark,
    rewards,
)

SECONDS = 3.0


def test_512_shuffled_requests_are_answered_in_seconds(gym) -> None:  # noqa: F811
    rounds = []
    for number in range(3):
        jobs = drawn(list(CHOSEN)[:16], f"round {number}")
        shuffled = random.Random(number).sample(jobs, len(jobs))
        started = time.perf_counter()
        replies = asked(gym, shuffled)
        rounds.append(time.perf_counter() - started)
        assert rewards(replies) == one_call(jobs)
    print(f"512 requests: {min(rounds):.2f} s, the slowest of {len(rounds)} {max(rounds):.2f} s")
    assert min(rounds) < SECONDS
