"""The task's prompts and what gives reward, through the hooks that the task brings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from huggingface_hub.errors import OfflineModeIsEnabled

from data_prep.contract import DataModule, Tools
from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.doctor.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.files.errors import EquipoiseError
from equipoise.models.task_environment import make_environment
from equipoise.run.prompts import check_steps, check_task, make_prompts, prepare_task, prompts_here

_JUDGE = "Check its address, name and key, and that it runs: docs/judges.md."


class NotLoadedError(Exception):
    """A model would have to be loaded into this process."""


def _prepared(case: Case) -> list[str]:
    """List what the task would make for its prompts. Raises `EquipoiseError`."""
    notes: list[str] = []
    prepare_task(case.configured, notes.append, dry_run=True)
    return notes


def prompts_of(case: Case) -> Sequence[PromptRecord] | EquipoiseError:
    """Make the prompts, or return why there are none."""
    case.once(_prepared)
    try:
        records = (make_prompts if case.online else prompts_here)(case.configured)
        check_steps(case.configured, records)
    except EquipoiseError as error:
        return error
    return records


def prompts(case: Case) -> Iterator[Finding]:
    """Look at the prompts, their parts, and the models that they need."""
    notes, records = list(case.once(_prepared)), case.once(prompts_of)
    data, module = case.config.equipoise.data, case.configured.data_module
    if data.data_path and case.job and not case.job.sees(Path(data.data_path)):
        remedy = "Add its folder to EQUIPOISE_MOUNTS."
        yield failure(f"the job's container does not see {data.data_path}", remedy)
    if isinstance(records, EquipoiseError):
        if not case.online and _wants_network(records):
            yield unchecked("--offline: they are of the hub")
        elif module.offers(DataModule.prepare) and not data.data_path:
            yield unchecked(f"{records.message}; a run makes them first")  # here nothing is made
        else:
            yield failure(records.message, records.remedy)
    else:
        rows = check_task(case.configured, records)
        notes += [f"{row.label}: {row.value} {row.note}".strip() for row in rows]
        splits = Counter(record.split for record in records)
        counted = ", ".join(f"{count:,} {split}" for split, count in splits.items())
        yield ok("; ".join([f"{counted}; from {data.data_path or data.module}", *notes]))
    if module.offers(DataModule.prepare):
        yield _preparation(case, module)


def _wants_network(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OfflineModeIsEnabled | ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _preparation(case: Case, module: DataModule) -> Finding:
    """Ask the models that make the prompts one question."""
    if not case.online:
        return unchecked("--offline: no request was made")
    tools = Tools(_not_loaded, _not_loaded, lambda _: None, dry_run=True, trial=True)
    try:
        module.prepare(case.configured.prompt_settings, tools)
    except NotLoadedError as unloaded:
        return unchecked(str(unloaded))
    except (ValueError, BudgetSpentError) as error:
        return failure(str(error), _JUDGE)
    return ok("what is named answers, where something is")


def _not_loaded(model: Any) -> NoReturn:
    raise NotLoadedError(f"{model} is of this process, and is not loaded for a check")


def reward(case: Case) -> Iterator[Finding]:
    """Make the environment, and ask each model that gives reward one question."""
    environment = make_environment(case.configured.environment_class, case.configured.env_settings)
    name, stand_in = type(environment).__name__, case.configured.env_settings.stand_in
    message = f"{name}; its settings, rules and keys are in order"
    yield warning(stand_in) if stand_in else ok(message)
    if not environment.offers(Environment.check):
        return
    encoder = environment.wanted_encoder()
    local = (environment.wanted_chat_model(), encoder.query_model if encoder else None)
    if models := ", ".join(filter(None, local)):  # what a run would load beside the policy
        yield unchecked(f"{models} is of this process, and is not loaded for a check")
    elif not case.online:
        yield unchecked("--offline: no request was made")
    elif problem := environment.check():
        yield failure(problem, _JUDGE)
    else:
        yield ok("what is named answers, where something is")
