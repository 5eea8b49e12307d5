"""A run or a task for others: NeMo Gym, verifiers, Inspect, plain Python.

command.py    the verbs: export gym, export verifiers
task.py       what an export takes of a run, its environment and the queue before it; templates/ has
              the files that are made of it
"""
