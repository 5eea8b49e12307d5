"""The run directory, and the stages that evaluation and training share.

directory.py    the names of its files, the folder of a new run, and the figures in its files
ledger.py       its lock, and provenance.json: what it was made from, and what it took
history.py, rollouts.py    files that are read and written
seals.py        manifest.json, by which a change of finished files is noticed; checkpoints
task.py         its prompts, and what gives reward
start.py        how a run starts, and how another process goes on
job.py          one run at work: its reference, its evaluations and their comparison
probe.py        what trivial baselines earn, before training and after it
policy.py, tokenizer.py    its model, by the configuration
model.py, chat_model.py, encoder.py    models of Hugging Face in this process: loaded and asked
sampling.py     how the local model writes
"""
