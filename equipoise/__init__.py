"""Training, evaluation and reports, independent of any task."""
