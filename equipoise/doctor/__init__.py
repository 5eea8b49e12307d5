"""A machine and a run: what would keep the run from working, before it costs GPU time.

checks.py      a check, its input and its findings; the machine that a run is for; checks at once
registry.py    every check; which of them a start and a dry run ask, too
machine.py     packages, the driver, GPUs, memory, folders and disks
nemo_rl.py     NeMo-RL, GPUs and memory of either engine
task.py        the model with its chat template, prompts and reward, by the hooks of the task
"""
