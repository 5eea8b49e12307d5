"""A machine and a run: what would keep the run from working, before it costs GPU time.

checks.py      a check, its input and its findings; the machine that a run is for
registry.py    every check; which of them a start and a dry run ask, too
machine.py     GPUs, memory, folders, disks and NeMo-RL, of this machine or of a cluster
task.py        the model with its chat template, prompts and reward, by the hooks of the task
"""
