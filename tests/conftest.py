"""Settings of every test: no timed test, the same examples in every run, nobody's wandb project."""

import os

from hypothesis import settings

settings.register_profile("equipoise", deadline=None, derandomize=True, database=None)
settings.load_profile("equipoise")

for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME"):
    os.environ.pop(name, None)
