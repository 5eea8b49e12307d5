"""What a run or a task becomes elsewhere: NeMo Gym, verifiers, Inspect, plain Python."""
