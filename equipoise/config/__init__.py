"""The configuration: NeMo-RL's keys and ours, composed from YAML and the command line.

    loaded = load_config(task, options)
    loaded.config.grpo.num_prompts_per_step

Importing it is cheap: neither torch nor an engine is imported.
"""

from equipoise.config.checks import check_prompts, control_token_problems
from equipoise.config.compose import Options
from equipoise.config.load import LoadedConfig, load_config
from equipoise.config.schema import LOCAL_MODEL, Config

__all__ = [
    "LOCAL_MODEL",
    "Config",
    "LoadedConfig",
    "Options",
    "check_prompts",
    "control_token_problems",
    "load_config",
]
