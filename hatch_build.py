"""The build of the wheel: refuses the environment of NeMo-RL's image, and puts data in.

The image names its environment in UV_PROJECT_ENVIRONMENT, and uv would replace what is installed
there by what this project needs. uv builds the project before it removes anything.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_DATA = ("nemo_configs", "recipes")
_NEMO_RLS = "/opt/nemo_rl_venv"
_MESSAGE = f"""\
{_NEMO_RLS} is the environment of NeMo-RL, and installing Equipoise there would change the packages
that NeMo-RL and its workers run on. Nothing was changed. Instead start a recipe with NeMo-RL's own
Python, or in an environment of ours:
  python recipes/grpo_fairness.py ...
  UV_PROJECT_ENVIRONMENT=/tmp/equipoise-venv uv run recipes/grpo_fairness.py ...
"""


class WheelHook(BuildHookInterface):
    """Runs at the start of every build of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise where the wheel is about to go into NeMo-RL's environment."""
        if os.environ.get("UV_PROJECT_ENVIRONMENT", "").rstrip("/") == _NEMO_RLS:
            raise SystemExit(_MESSAGE)
        if version != "editable":  # which reads them where they are
            build_data["force_include"] = {name: f"equipoise/{name}" for name in _DATA}
