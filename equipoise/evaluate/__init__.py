"""Evaluation without training: models are asked, scored again, and compared.

plan.py                   what is asked, and how: models, adapters, checkpoints, endpoints; its rows
writers.py                how a model writes, in this process or behind an endpoint
evaluate.py               the rows of an audit, each a run directory with a baseline
entries.py, compare.py    evaluated stages, and how they differ
gate.py, also.py          whether a model is worse than another one; other tasks after a run
answers*.py               what others have published: replies to variants, scored and compared
rescore.py                stored rollouts, scored as it is done today
*_report.py               the same for a reader, on the terminal and as a page
*command.py               the verbs
"""
