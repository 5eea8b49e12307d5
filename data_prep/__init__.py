"""Makers of prompts and of the tiny local models: a package per task, shared tools beside them.

    equipoise prepare TASK --output-dir DIR

`contract.py` says what the class of a task's data has; it stands in the package's `__init__.py`.
Its files are called alike in all of them:

    prompts.py      PromptSettings, build_prompts, and checks of prompts
    invented.py     data that is made here, about nothing real (fairness: vignettes.py)
    sources.py      data of others, from a file or a hub (dharma: in prompts.py)
    local_model.py  the tiny model of the task, what it imitates, and how it replies
"""
