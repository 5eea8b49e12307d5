"""What NeMo-RL's actor adds to scoring, on one core; run with `pytest -n 0 tests/benchmarks`."""

import time
from collections.abc import Callable

from environments.base import Rollout, Score
from environments.contract import Environment as Contract
from environments.measurement import Measurement
from equipoise.train.nemo_rl.scoring import StepScorer

ROLLOUTS = 10_000
MILLISECONDS_PER_THOUSAND = 2.0


class Free(Contract):
    """An environment whose own work is next to nothing."""

    name, scope = "free", "rollout"

    def score(self, rollouts: list[Rollout]) -> list[Score]:
        return [Score(1.0) for _ in rollouts]

    def measure(self, rollouts: list[Rollout], scores: list[Score]) -> Measurement:
        raise NotImplementedError


def cpu_seconds(action: Callable[[], object]) -> float:
    """The best of several rounds."""
    rounds = []
    for _ in range(7):
        started = time.process_time()
        action()
        rounds.append(time.process_time() - started)
    return min(rounds)


def test_the_actor_adds_little_to_the_environment() -> None:
    info = [
        {"prompt_id": f"{i // 8}", "set_id": "s", "split": "train", "metadata": {"race": "Asian"}}
        for i in range(ROLLOUTS)
    ]
    logs = [
        [{"role": "user", "content": "Q" * 800}, {"role": "assistant", "content": "A" * 200}]
        for _ in range(ROLLOUTS)
    ]
    rollouts = [Rollout(x["prompt_id"], "s", "train", "Q", "A", x["metadata"]) for x in info]
    plain = cpu_seconds(lambda: Free().score(rollouts))
    served = cpu_seconds(lambda: StepScorer(Free()).rewards(logs, info))
    added = (served - plain) / ROLLOUTS * 1_000 * 1_000
    print(f"the actor adds {added:.2f} ms per 1,000 rollouts")
    assert added < MILLISECONDS_PER_THOUSAND
    assert served > plain, "the comparison must measure something"
