"""The environments for verifiers: one package for each, in which a set is one episode.

episode.py   prompts as tasks, an agent that asks once, and the rewards of an episode
export.py    the package of a run's task, which prime-rl and `vf-eval` take by its name

export.py does not import verifiers.
"""
