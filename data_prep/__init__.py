"""Makers of prompts and of the tiny local models: a package per task, shared tools beside them.

    python -m data_prep --help

`hooks.py` says what a task's data module exposes, and the `__init__.py` of a package names that.
Its files are called alike in all of them:

    prompts.py      PromptSettings and build_prompts
    invented.py     data that is made here, about nothing real (fairness: vignettes.py)
    sources.py      data of others, from a file or a hub
    checks.py       what is wrong with prompts, and rows for `--dry-run`
    preparation.py  what the prompts need first
    local_model.py  the tiny model of the task and what it imitates

The package `answers` makes none: it reads what models of others have answered.
"""
