"""The run directory: its files, where they come from, whose they are, and how a run goes on.

directory.py    the names of its files, and the folder of a new run
ledger.py       its owner, one process at a time, and provenance.json: what it was made from, and of
                usage.py what it took
history.py, rollouts.py, log.py    files that are read and written
seals.py        what a file was when it was finished, so that damage is noticed; checkpoints
prompts.py      what they need, and how they are made, read and checked, without a run too
resume.py       how another process goes on
"""
