"""Which Python environments are NeMo-RL's: nothing may be installed into them.

Only the standard library is imported, for the build of the package asks, too.
"""

from pathlib import Path

#: Where NeMo-RL's image has its driver's environment.
CONTAINER_ENVIRONMENT = Path("/opt/nemo_rl_venv")


def is_nemo_rls(environment: Path) -> bool:
    """Whether this environment was made for NeMo-RL, or has it installed."""
    return (
        environment.resolve() == CONTAINER_ENVIRONMENT
        or _prompt(environment) == "nemo-rl"
        or any(environment.glob("lib/python3*/site-packages/nemo_rl-*.dist-info"))
    )


def _prompt(environment: Path) -> str:
    """The project's name, which uv notes in the environment that it makes for it."""
    try:
        lines = (environment / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    settings = dict(line.partition(" = ")[::2] for line in lines)
    return settings.get("prompt", "")
