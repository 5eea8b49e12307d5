"""Show what a task's reward pays for nothing, before anything is trained: name the task first.

The best constant reply, copying, declining, the untrained model's vote, best of n and likeliest
reply, and the policies that the task knows, on the prompts of the evaluation. The run that this
leaves is one that has not begun to train: --resume with the task's own recipe trains it.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a Python that has no Equipoise

from equipoise.cli import probe_main

if __name__ == "__main__":
    probe_main(__doc__)
