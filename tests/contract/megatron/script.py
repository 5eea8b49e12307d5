"""A script of NeMo-RL's, such as a converter, on a CPU.

python script.py PACKAGES NEMO_RL SCRIPT [ARGUMENT...]
"""

import os
import runpy
import sys

import cpu

if __name__ == "__main__":
    packages, nemo_rl, *sys.argv = sys.argv[1:]
    sys.path.insert(0, nemo_rl)
    cpu.prepare(packages)
    sys.modules["nemo_automodel"] = None  # NeMo-RL's environment for Megatron has none
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]  # a converter starts a group of its own
    runpy.run_path(sys.argv[0], run_name="__main__")
