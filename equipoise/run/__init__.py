"""The run directory: its files, where they come from, whose they are, and how a run goes on.

directory.py    the names of its files, and the folder of a new run
ledger.py       provenance.json: of provenance.py what it was made from, of usage.py what it took
history.py, rollouts.py, training_rollouts.py, checkpoints.py, log.py    files that are read and
                written
seals.py, kept_files.py    what a file was when it was finished, so that damage is noticed
prompts.py      what they need, and how they are made, read and checked; prepare.py without a run
ownership.py    one process at a time; resume.py is how another goes on
"""
