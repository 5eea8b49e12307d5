"""A machine and a run: what would keep the run from working, before it costs GPU time.

checks.py     a check, its input and its findings; checks run at once
registry.py   every check; which of them a start asks, too
software.py   this Python, torch and the driver, GPUs and memory
nemo_rl.py    NeMo-RL, its environments, Ray, the nodes of a cluster
python.py     what NeMo-RL's Python says, by script.py, which it runs
storage.py    folders, disks, shared memory, ports
accounts.py   .env, wandb, the Hugging Face hub, the model
task.py       prompts and reward, by the hooks of the task
doctor.py     `equipoise doctor`
launch.py     from the user's process to NeMo-RL's Python, with overlay.py beside its packages
"""
