"""Preparation of a task before its prompts, and its check of its parts.

Both are hooks of its data module, see data_prep/contract.py.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from data_prep.contract import DataModule, Tools
from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from equipoise.config import LoadedConfig
from equipoise.config.dry_run import Row
from equipoise.errors import EquipoiseError
from equipoise.models.libraries import offline
from equipoise.models.packaged import clear_errors
from equipoise.models.task_environment import load_chat_model, load_encoder, make_environment
from equipoise.train.stages.failures import BUDGET_REMEDY

_REMEDY = "Change equipoise.data or env in the configuration."


def prepare_task(
    loaded: LoadedConfig, say: Callable[[str], None], *, dry_run: bool = False, ask: bool = False
) -> None:
    """Let the task make what its prompts and its environment need. Raises `EquipoiseError`.

    A dry run makes nothing; with `ask` each of its models is asked one question.
    """
    cache = loaded.config.equipoise.cache_dir
    tools = Tools(lambda name: load_chat_model(name, cache), load_encoder, say, dry_run, ask)
    try:
        # A dry run fetches nothing; with `ask` a model may be, to be asked.
        with clear_errors(), offline() if dry_run and not ask else nullcontext():
            loaded.data_module.prepare(loaded.prompt_settings, tools)
    except ValueError as error:
        raise EquipoiseError(str(error), _REMEDY) from error
    except BudgetSpentError as error:  # what was made so far is kept
        raise EquipoiseError(str(error), BUDGET_REMEDY) from error


def check_task(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> list[Row]:
    """Return what the task finds in one check of its parts, for `--dry-run`."""
    module = loaded.data_module
    if not module.offers(DataModule.check):
        return []
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    try:
        return [Row(*row) for row in module.check(loaded.prompt_settings, records, environment)]
    except ValueError as error:
        raise EquipoiseError(str(error), _REMEDY) from error
