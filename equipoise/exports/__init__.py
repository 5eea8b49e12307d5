"""A run or a task for others: NeMo Gym, verifiers, Inspect, plain Python.

command.py    the verbs: export gym, export verifiers
task.py       what an export takes of a run; templates/ has the files that are made of it
rewards.py    the environment of an export, and the queue before it
"""
