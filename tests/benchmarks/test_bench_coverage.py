"""The table of docs/report.md: `pytest -n 0 -s tests/benchmarks/test_bench_coverage.py`.

500 rounds of the slowest kind take about ten minutes on one core; ROUNDS=100 gives a rough table.
"""

import os

from tests.equipoise.statistics.simulation import coverages, levels

ROUNDS = int(os.environ.get("ROUNDS", "500"))
CLUSTERS = (40, 90)


def test_coverage_and_levels():
    """Intervals hold between .92 and .99 of the time; at most 6% of tests and guards are wrong."""
    print("\n| what | truth | 40 clusters | 90 clusters |\n|---|---|---|---|")
    for what, truth, simulation, times in coverages():
        figures = [simulation(clusters, ROUNDS * times) for clusters in CLUSTERS]
        print(f"| {what} | {truth} | {' | '.join(map(told, figures))} |", flush=True)
        error = 3 * (0.05 * 0.95 / (ROUNDS * times)) ** 0.5
        assert all(0.92 - error < held for held, *_ in figures)
    for what, truth, simulation, times in levels():
        figures = [simulation(clusters, ROUNDS * times) for clusters in CLUSTERS]
        print(f"| {what} | {truth} | {' | '.join(map(told, figures))} |", flush=True)
        error = 3 * (0.05 * 0.95 / (ROUNDS * times)) ** 0.5
        assert all(wrong < 0.06 + error for (wrong,) in figures)


def told(figures):
    """Coverage, and in brackets how often a truth of nothing was taken for something."""
    held, *wrong = (f"{figure:.3f}".lstrip("0") for figure in figures)
    return f"{held} ({wrong[0]})" if wrong else held
