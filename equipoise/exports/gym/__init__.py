"""The environments for NeMo Gym: one resources server for every scope."""
