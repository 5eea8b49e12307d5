"""The task's prompts and what gives reward, through the hooks that the task brings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from huggingface_hub.errors import OfflineModeIsEnabled

from data_prep.contract import DataModule, Tools
from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.errors import EquipoiseError
from equipoise.machine.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.models.task_environment import make_environment
from equipoise.run.prompts import check_task, fit_steps, make_prompts, prepare_task


class NotLoadedError(Exception):
    """A model would have to be loaded into this process."""


# --- what is looked at once ---------------------------------------------------------------------


def _prepared(case: Case) -> list[str]:
    """List what the task would make for its prompts. Raises `EquipoiseError`."""
    notes: list[str] = []
    prepare_task(case.configured, notes.append, dry_run=True)
    return notes


def _prompts(case: Case) -> Sequence[PromptRecord] | EquipoiseError:
    """The prompts, or why there are none."""
    notes = case.once(_prepared)
    try:
        records = make_prompts(case.configured)
        fit_steps(case.configured, records, notes.append)
    except EquipoiseError as error:
        return error
    return records


def _notes(case: Case) -> list[str]:
    """Ask the task about its parts. Raises `EquipoiseError` for one that does not work."""
    notes, records = list(case.once(_prepared)), case.once(_prompts)
    if not isinstance(records, EquipoiseError):
        rows = check_task(case.configured, records)
        notes += [f"{row.label}: {row.value} {row.note}".strip() for row in rows]
    return notes


def _environment(case: Case) -> Environment:
    return make_environment(case.configured.environment_class, case.configured.env_settings)


# --- the prompts --------------------------------------------------------------------------------


def parts(case: Case) -> Iterator[Finding]:
    """The parts behind prompts and reward, as the task describes them."""
    yield ok("; ".join(case.once(_notes)) or "it needs nothing besides its prompts")


def prompts(case: Case) -> Iterator[Finding]:
    """The prompts: how many there are, or why there are none."""
    records = case.once(_prompts)
    data, module = case.config.equipoise.data, case.configured.data_module
    if isinstance(records, EquipoiseError):
        if not case.online and _wants_network(records):
            yield unchecked("--offline: they are of the hub")
        elif module.offers(DataModule.prepare) and not data.data_path:
            yield unchecked(f"{records.message}; a run makes them first")  # here nothing is made
        else:
            yield failure(records.message, records.remedy)
        return
    splits = Counter(record.split for record in records)
    counted = ", ".join(f"{count:,} {split}" for split, count in splits.items())
    yield ok(f"{counted}; from {data.data_path or data.module}")


def _wants_network(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OfflineModeIsEnabled | ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def preparation(case: Case) -> Iterator[Finding]:
    """The models that the prompts need, asked once, and after the parts: hooks run one by one."""
    case.once(_notes)
    module = case.configured.data_module
    if not module.offers(DataModule.prepare):
        yield ok("the prompts need none")
        return
    if not case.online:
        yield unchecked("--offline: no request was made")
        return
    tools = Tools(_not_loaded, _not_loaded, lambda _: None, dry_run=True, trial=True)
    try:
        module.prepare(case.configured.prompt_settings, tools)
    except NotLoadedError as unloaded:
        yield unchecked(str(unloaded))
    except (ValueError, BudgetSpentError) as error:
        yield failure(str(error))
    else:
        yield ok("what is named answers, where something is")


def _not_loaded(model: Any) -> NoReturn:
    raise NotLoadedError(f"{model} is of this process, and is not loaded for a check")


# --- the reward ---------------------------------------------------------------------------------


def reward(case: Case) -> Iterator[Finding]:
    """The environment, or its stand-in."""
    name, stand_in = type(case.once(_environment)).__name__, case.configured.env_settings.stand_in
    message = f"{name}; its settings, rules and keys are in order"
    yield warning(stand_in) if stand_in else ok(message)


def answers(case: Case) -> Iterator[Finding]:
    """One question to each model that gives reward."""
    environment = case.once(_environment)
    encoder = environment.wanted_encoder()
    local = (environment.wanted_chat_model(), encoder.query_model if encoder else None)
    if not environment.offers(Environment.check):
        yield ok("it asks none")
    elif models := ", ".join(filter(None, local)):  # what a run would load beside the policy
        yield unchecked(f"{models} is of this process, and is not loaded for a check")
    elif not case.online:
        yield unchecked("--offline: no request was made")
    elif problem := environment.check():
        yield failure(problem)
    else:
        yield ok("what is named answers, where something is")
