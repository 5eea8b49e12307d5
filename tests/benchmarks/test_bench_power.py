"""The table of docs/report.md on the fairness task, how often its guards are preserved:
`pytest -n 0 -s tests/benchmarks/test_bench_power.py`.

100 rounds take about six minutes on one core; ROUNDS=20 gives a rough table.
"""

import os

import numpy as np

from tests.equipoise.statistics.fairness_runs import GENERATIONS, LOST_TWICE, guards_of, unchanged

ROUNDS = int(os.environ.get("ROUNDS", "200"))
_ERROR = 3 * (0.2 * 0.8 / ROUNDS) ** 0.5


def test_guards_of_a_model_that_did_not_change_are_kept():
    """At the size of the local run, and what the report says of it beside each guard."""
    print(f"\n{GENERATIONS} generations, {ROUNDS} rounds")
    print("| guard | preserved, unchanged | power told | preserved, lost twice | power told |")
    same = guards_of(unchanged, ROUNDS, GENERATIONS)
    every = np.mean([all(c.guard == "preserved" for c in run.values()) for run in same])
    for name, lossy in LOST_TWICE.items():
        lost = guards_of(lossy, ROUNDS, GENERATIONS)
        kept, wrong = (
            np.mean([run[name].guard == "preserved" for run in runs]) for runs in (same, lost)
        )
        powers = [np.mean([run[name].margin.power for run in runs]) for runs in (same, lost)]
        print(
            f"| {name} | {kept:.3f} | {powers[0]:.3f} | {wrong:.3f} | {powers[1]:.3f} |", flush=True
        )
        assert kept > 0.8 - _ERROR
        assert wrong < 0.05 + _ERROR
        assert abs(powers[0] - kept) < 0.1 + _ERROR
    print(f"all of them kept together: {every:.3f}")
