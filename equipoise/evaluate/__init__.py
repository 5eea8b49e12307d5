"""Evaluation without training: models are asked, and their evaluations compared.

plan.py                   what is asked, and how: models, adapters, checkpoints, endpoints; its rows
writers.py                how a model writes, in this process or behind an endpoint
evaluate.py               the rows of an audit, each a run directory with a baseline
compare.py                evaluated stages, and how they differ
gate.py                   whether a model is worse than another one
calibrate.py              how far a judge errs

Results are data: report makes documents of them, and commands print and write these.
"""
