"""A machine and a run: what would keep the run from working, before it costs GPU time.

checks.py      a check, its input and its findings; the machine that a run is for; checks at once
registry.py    every check; which of them a start and a dry run ask, too
software.py    this Python's packages, the driver, GPUs and memory
nemo_rl.py     NeMo-RL, GPUs and memory of either engine
storage.py     folders and disks
task.py        the model with its chat template, prompts and reward, by the hooks of the task
"""
