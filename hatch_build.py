"""The build of the wheel: refuses NeMo-RL's environment, and puts recipes and configurations in.

NeMo-RL's image names its environment in UV_PROJECT_ENVIRONMENT, and uv would replace what is
installed there by what this project needs. uv builds the project before it removes anything.
`uv pip install --python` cannot be refused: uv tells a build nothing of where the wheel will go,
and takes one that it has built before.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# By its path: its package imports what a build has not.
_ENVIRONMENT = Path(__file__).parent / "equipoise" / "config" / "nemo_rl" / "environment.py"
is_nemo_rls = runpy.run_path(str(_ENVIRONMENT))["is_nemo_rls"]
_VARIABLE = "UV_PROJECT_ENVIRONMENT"
_DATA = ("nemo_configs", "recipes")
_MESSAGE = """\
{environment} is the environment of NeMo-RL, and installing Equipoise there would change the
packages that NeMo-RL and its workers run on. Nothing was changed. Instead start a recipe
with NeMo-RL's own Python, or in an environment of ours:
  {environment}/bin/python recipes/grpo_fairness.py ...
  UV_PROJECT_ENVIRONMENT=/tmp/equipoise-venv uv run recipes/grpo_fairness.py ...
Both leave NeMo-RL's packages as they are; docs/nemo-rl.md says more.
"""


class WheelHook(BuildHookInterface):
    """Runs at the start of every build of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise where the wheel is about to go into NeMo-RL's environment."""
        for environment in _targets():
            if is_nemo_rls(environment):
                raise SystemExit(_MESSAGE.format(environment=environment))
        if version != "editable":  # which reads them where they are
            build_data["force_include"] = {name: f"equipoise/{name}" for name in _DATA}


def _targets() -> list[Path]:
    """Where `uv sync` and `uv run`, or pip, which builds with its own Python, will install it."""
    named = os.environ.get(_VARIABLE)
    return [Path(sys.prefix), *([Path(named)] if named else [])]
