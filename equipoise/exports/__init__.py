"""Exports of a run or a task: NeMo Gym, verifiers, Inspect, plain Python."""
