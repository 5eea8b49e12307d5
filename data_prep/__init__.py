"""What makes prompt records and the tiny local models: a package per task, shared tools beside.

`data_prep.hooks` describes what a task's data module exposes.
"""
