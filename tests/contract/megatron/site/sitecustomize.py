"""A Python that starts with this folder on PYTHONPATH has Megatron's packages: see stand_ins.py."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import stand_ins

stand_ins.install(os.environ["MEGATRON_PACKAGES"])
