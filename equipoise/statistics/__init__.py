"""Statistics of a run: intervals, floors, tests, verdicts."""
