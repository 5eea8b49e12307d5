"""Checks of all that a run needs, before it costs GPU time: `equipoise doctor`.

    checks.py     every check with what it looks at and its usual remedy; what one says
    together.py   runs checks at once, each with its limit of time
    software.py   this Python, torch and the driver, the GPUs and their memory
    nemo_rl.py    NeMo-RL, its environments, Ray, the nodes of a cluster
    storage.py    folders, disks, shared memory, ports
    accounts.py   .env, wandb, the Hugging Face hub, the model
    task.py       prompts and reward, by the hooks of the task
    command.py    the command line, the table and the JSON

A check lives where its subject lives; what is here asks for it and says what came of it.
"""
