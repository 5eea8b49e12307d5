"""The table on judges in docs/statistics.md.

pytest -n 0 -s tests/benchmarks/test_bench_misclassification.py
"""

from tests.equipoise.statistics.test_misclassification import (
    FAIR,
    GOOD,
    POOR,
    corrected_held,
)

ROUNDS = 4_000
CLUSTERS, ITEMS = (40, 90), (30, 100)


def test_coverage_of_corrected_rates() -> None:
    """Corrected intervals hold .92 of the time at least, where there is one."""
    for judge in (GOOD, FAIR, POOR):
        for truth in (0.02, 0.05, 0.2, 0.5):
            cells = []
            for clusters in CLUSTERS:
                for items in ITEMS:
                    held, naive, known = corrected_held(clusters, ROUNDS, truth, judge, items)
                    cells.append(f"{held:.3f} ({naive:.3f}, {known:.2f})")
                    assert held > 0.91
            print(f"| {judge} | {truth} | {' | '.join(cells)} |", flush=True)
