"""The environments for verifiers: one package for each, in which a set is one episode.

    taskset.py   prompts as tasks: the prompts of a set, or one prompt, are one
    asking.py    a harness that asks the model once, in the process of the environment
    episode.py   the agents that answer, one for each prompt, and their rewards together
    export.py    the package of a run's task, which prime-rl and `vf-eval` take by its name

export.py alone does not import verifiers.
"""
