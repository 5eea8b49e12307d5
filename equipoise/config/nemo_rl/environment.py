"""Which Python environments are NeMo-RL's, and whether this process was handed over to one.

Only the standard library is imported, for the build of the package asks, too.
"""

import os
from pathlib import Path

#: Set by `launch.py` for the process that runs the training.
LAUNCHED = "EQUIPOISE_LAUNCHED"
#: Where NeMo-RL's image has its driver's environment.
CONTAINER_ENVIRONMENT = Path("/opt/nemo_rl_venv")


def is_nemo_rls(environment: Path) -> bool:
    """Whether this environment was made for NeMo-RL, or has it installed."""
    return (
        environment.resolve() == CONTAINER_ENVIRONMENT
        or _prompt(environment) == "nemo-rl"
        or any(environment.glob("lib/python3*/site-packages/nemo_rl-*.dist-info"))
    )


def is_launched() -> bool:
    """Whether this process runs in NeMo-RL's Python, checked and handed over to."""
    return LAUNCHED in os.environ


def _prompt(environment: Path) -> str:
    """Read the project's name, which uv notes in the environment that it makes for it."""
    try:
        lines = (environment / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    settings = dict(line.partition(" = ")[::2] for line in lines)
    return settings.get("prompt", "")
