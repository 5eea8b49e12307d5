"""The table of docs/gate.md: how often the gate passes and fails simulated models.

`pytest -n 0 -s tests/benchmarks/test_bench_gate.py`; 200 rounds take some two hours on one core,
most of it for fairness. ROUNDS=40 gives a rough table.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from environments.base import REWARD
from tests.equipoise.statistics.fairness_runs import LOST_TWICE, unchanged
from tests.equipoise.statistics.gate_runs import (
    MORE_BIASED,
    REFERRING,
    SOMEWHAT_BIASED,
    WRONG,
    Change,
    Pool,
    Round,
    biased,
    fairness_round,
    planted,
    shares,
    verdicts,
)
from tests.equipoise.statistics.known_answers import of_local_scale

HEAD = "\n| task | prompts, replies to each | worse by twice its margin | failed | passed |"
ROUNDS = int(os.environ.get("ROUNDS", "200"))
#: Task -> replies to a prompt, the local run's among them, and the metrics that are made worse.
SIZES = {
    "dharma": (
        (4, 12, 24),
        {REWARD: WRONG, "right_advice_rate": WRONG, "needless_referral_rate": REFERRING},
    ),
    "pubmedqa": ((1, 4, 12, 24), {REWARD: WRONG, "grounded_rate": WRONG}),
    "rag": ((8, 32, 64), {REWARD: WRONG, "retrieval_recall": WRONG}),
}
#: Of fairness: test sets of so many seeds together, and replies to a prompt.
FAIRNESS_SIZES = ((1, 32), (4, 32))


@cache
def pool_of(task: str, cache_dir: Path) -> Pool:
    return Pool.of(of_local_scale(task, cache_dir, 1_000))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pool]:
    folder = tmp_path_factory.mktemp("cache")
    return lambda task: pool_of(task, folder)


def told(task: str, size: str, change: str, run: Round) -> tuple[float, float]:
    failed, passed = shares(verdicts({task: run}, ROUNDS))
    print(f"| {task} | {size} | {change} | {failed:.3f} | {passed:.3f} |", flush=True)
    return failed, passed


def check(failed: float, passed: float, change: str) -> None:
    """An unchanged model hardly ever fails, and a worse one hardly ever passes."""
    error = 3 * (0.05 * 0.95 / ROUNDS) ** 0.5
    assert (failed if change.startswith("nothing") else passed) <= 0.05 + error


@pytest.mark.parametrize("task", SIZES)
def test_a_task_with_a_right_reply(task: str, pool: Callable[[str], Pool]) -> None:
    sizes, worse = SIZES[task]
    print(HEAD)
    of = pool(task)
    for replies in sizes:
        changes = {"nothing": Change()}
        changes |= {metric: planted(of, metric, 2.0, kind) for metric, kind in worse.items()}
        for change, after in changes.items():
            check(*told(task, f"{of.prompts}, {replies}", change, of.round(replies, after)), change)


@pytest.mark.parametrize(("seeds", "replies"), FAIRNESS_SIZES)
def test_fairness(seeds: int, replies: int) -> None:
    print(HEAD)
    changes = {"nothing": unchanged, "blind_distance, from .19": MORE_BIASED} | dict(LOST_TWICE)
    runs = {change: fairness_round(replies, after, seeds) for change, after in changes.items()}
    fair, name = biased(0.0), "blind_distance, from 0"
    runs[name] = fairness_round(replies, SOMEWHAT_BIASED, seeds, fair)
    runs["nothing, from 0"] = fairness_round(replies, fair, seeds, fair)
    for change, run in runs.items():
        check(*told("fairness", f"{seeds * 524}, {replies}", change, run), change)


@pytest.mark.parametrize(("sets", "times"), [(1, 1), (4, 2)])
def test_all_tasks_in_one_family(sets: int, times: int, pool: Callable[[str], Pool]) -> None:
    """At the sizes of the local runs, and larger; one of the tasks is worse, if any."""
    print(HEAD)

    def runs(task: str = "", metric: str = "") -> dict[str, Round]:
        each: dict[str, Round] = {"fairness": fairness_round(32, unchanged, sets)}
        for name, replies in {"dharma": 12, "pubmedqa": 12, "rag": 32}.items():
            of = pool(name)
            change = planted(of, metric, 2.0) if name == task else Change()
            each[name] = of.round(times * replies, change)
        return each

    worse = (("", ""), ("dharma", "right_advice_rate"), ("pubmedqa", "grounded_rate"))
    for task, metric in worse:
        failed, passed = shares(verdicts(runs(task, metric), ROUNDS))
        size = f"{sets}, {times} times the replies"
        print(f"| all four | {size} | {metric or 'nothing'} | {failed:.3f} | {passed:.3f} |")
        check(failed, passed, metric or "nothing")
