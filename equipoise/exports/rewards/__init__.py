"""A task's rewards for other libraries: what is taken from a run, opened again, and scored with.

of_run      the prompts, the settings and the reference that an export takes
opening     the environment of an export, ready to score
scoring     one call of `score` at a time, with all that waits for it
"""
