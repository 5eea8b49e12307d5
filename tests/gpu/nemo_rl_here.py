"""`python -m equipoise` on NeMo-RL with all of its workers in this Python, where no network is.

NeMo-RL itself makes an environment for each kind of worker; here this one has what they import.
"""

import os
import runpy

from equipoise.files.nemo_rl import LAUNCHED, find_installation
from equipoise.train.nemo_rl.process import before_nemo_rl

os.environ[LAUNCHED] = "1"
find_installation().make_importable()
before_nemo_rl()

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY  # noqa: E402
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES  # noqa: E402

system = PY_EXECUTABLES.SYSTEM
ACTOR_ENVIRONMENT_REGISTRY.update(dict.fromkeys(ACTOR_ENVIRONMENT_REGISTRY, system))
runpy.run_module("equipoise", run_name="__main__", alter_sys=True)
