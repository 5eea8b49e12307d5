"""The task's prompts and what gives reward, through the hooks that the task brings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from huggingface_hub.errors import OfflineModeIsEnabled

from data_prep.contract import DataModule, Tools
from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.config import LoadedConfig
from equipoise.doctor.checks import (
    ANSWERS,
    PARTS,
    PREPARATION,
    PROMPTS,
    REWARD,
    Result,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.errors import EquipoiseError
from equipoise.models.task_environment import make_environment
from equipoise.run.prompts import check_task, fit_steps, make_prompts, prepare_task


class NotLoadedError(Exception):
    """A model would have to be loaded into this process."""


def data(loaded: LoadedConfig, *, online: bool) -> Iterator[Result]:
    """Check what the prompts need, the prompts, what the task says of both, and who prepares them.

    Raises `EquipoiseError` where a part of the task does not work.
    """
    notes: list[str] = []
    records: Sequence[PromptRecord] = ()
    prepare_task(loaded, notes.append, dry_run=True)
    try:
        prompts = make_prompts(loaded)
        fit_steps(loaded, prompts, notes.append)
        records = prompts
        yield ok(PROMPTS, _counted(loaded, records))
        rows = check_task(loaded, records)
        notes += [f"{row.label}: {row.value} {row.note}".strip() for row in rows]
    except EquipoiseError as error:
        if records:
            raise
        yield _without_prompts(loaded, error, online=online)
    yield ok(PARTS, "; ".join(notes) or "it needs nothing besides its prompts")
    yield preparation(loaded, online=online)


def _counted(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> str:
    splits = Counter(record.split for record in records)
    counted = ", ".join(f"{count:,} {split}" for split, count in splits.items())
    where = loaded.config.equipoise.data
    return f"{counted}; from {where.data_path or where.module}"


def _without_prompts(loaded: LoadedConfig, error: EquipoiseError, *, online: bool) -> Result:
    """A run makes what is missing before its prompts are built; here nothing is made."""
    if not online and _wants_network(error):
        return unchecked(PROMPTS, "--offline: they are of the hub")
    if loaded.data_module.offers(DataModule.prepare) and not loaded.config.equipoise.data.data_path:
        return unchecked(PROMPTS, f"{error.message}; a run makes them first")
    return failure(PROMPTS, error.message, error.remedy)


def _wants_network(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OfflineModeIsEnabled | ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def preparation(loaded: LoadedConfig, *, online: bool) -> Result:
    """The models that the prompts need, asked once."""
    module = loaded.data_module
    if not module.offers(DataModule.prepare):
        return ok(PREPARATION, "the prompts need none")
    if not online:
        return unchecked(PREPARATION, "--offline: no request was made")
    tools = Tools(_not_loaded, _not_loaded, lambda _: None, dry_run=True, trial=True)
    try:
        module.prepare(loaded.prompt_settings, tools)
    except NotLoadedError as unloaded:
        return unchecked(PREPARATION, str(unloaded))
    except (ValueError, BudgetSpentError) as error:
        return failure(PREPARATION, str(error))
    return ok(PREPARATION, "what is named answers, where something is")


def _not_loaded(model: Any) -> NoReturn:
    raise NotLoadedError(f"{model} is of this process, and is not loaded for a check")


def reward(loaded: LoadedConfig, *, online: bool) -> Iterator[Result]:
    """Check what gives reward, and the models that it asks."""
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    settings = loaded.env_settings
    stand_in = settings.stand_in
    message = f"{type(environment).__name__}; its settings, rules and keys are in order"
    yield warning(REWARD, stand_in) if stand_in else ok(REWARD, message)
    yield answers(environment, online=online)


def answers(environment: Environment, *, online: bool) -> Result:
    """One question to each model that gives reward."""
    if not environment.offers(Environment.check):
        return ok(ANSWERS, "it asks none")
    if models := ", ".join(_of_this_process(environment)):
        return unchecked(ANSWERS, f"{models} is of this process, and is not loaded for a check")
    if not online:
        return unchecked(ANSWERS, "--offline: no request was made")
    if problem := environment.check():
        return failure(ANSWERS, problem)
    return ok(ANSWERS, "what is named answers, where something is")


def _of_this_process(environment: Environment) -> Iterator[str]:
    """The models that a run would load beside the policy."""
    if name := environment.wanted_chat_model():
        yield name
    if encoder := environment.wanted_encoder():
        yield encoder.query_model
