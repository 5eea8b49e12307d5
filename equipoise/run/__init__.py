"""The run directory, and the stages that evaluation and training share.

directory.py    the names of its files, and the folder of a new run
ledger.py       its lock, and provenance.json: what it was made from, and of usage.py what it took
contents.py     figures of its other files, as classes
history.py, rollouts.py, log.py    files that are read and written
seals.py        manifest.json, by which damage of finished files is noticed; checkpoints
prompts.py      what they need, and how they are made, read and checked
start.py        how a run starts, and how another process goes on
job.py, evaluation.py    one run at work; its reference, its baseline and its final evaluation
policy.py       the local model, and how it writes
"""
