"""What a run is worth: intervals, floors, tests and verdicts."""
