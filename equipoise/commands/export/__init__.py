"""A run's task for others: NeMo Gym, verifiers, Inspect."""
