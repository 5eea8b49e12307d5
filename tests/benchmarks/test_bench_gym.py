"""What NeMo Gym's server takes for a step, over HTTP; run with `pytest -n 0 tests/benchmarks`.

The bound is on the server's own CPU time, for the clock measures what else the machine does.
"""

import random
import time

import psutil

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
    server = psutil.Process(gym.process.pid)
    rounds, busy = [], []
    for number in range(5):
        jobs = drawn(list(CHOSEN)[:16], f"round {number}")
        shuffled = random.Random(number).sample(jobs, len(jobs))
        started, used = time.perf_counter(), sum(server.cpu_times()[:2])
        replies = asked(gym, shuffled)
        rounds.append(time.perf_counter() - started)
        busy.append(sum(server.cpu_times()[:2]) - used)
        assert rewards(replies) == one_call(jobs)
    print(
        f"512 requests: {min(rounds):.2f} to {max(rounds):.2f} s by the clock, {len(rounds)} rounds"
    )
    print(f"the server's CPU: {min(busy):.2f} to {max(busy):.2f} s")
    assert min(busy) < SECONDS
