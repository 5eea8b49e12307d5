from environments.base import Score
from equipoise.engines.failures import FailureMonitor, errors_of

GOOD, BAD = errors_of([Score(1.0), Score(None, error="judge timed out")])


def test_the_run_stops_above_the_rate_not_at_it():
    monitor = FailureMonitor(max_rate=0.1, window=3)
    monitor.add([GOOD] * 9 + [BAD])
    assert not monitor.exceeded
    monitor.add([GOOD] * 8 + [BAD] * 2)
    assert monitor.exceeded
    assert "judge timed out (3x)" in str(monitor.error())


def test_only_the_last_steps_count():
    monitor = FailureMonitor(max_rate=0.1, window=2)
    monitor.add([BAD] * 10)
    for _ in range(2):
        monitor.add([GOOD] * 10)
    assert monitor.rate == 0


def test_a_run_without_rollouts_has_not_failed():
    assert not FailureMonitor(max_rate=0.1, window=2).exceeded
