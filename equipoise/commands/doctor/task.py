"""Checks of the policy's model, the task's prompts and its reward, through the task's hooks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from environments.base import PromptRecord
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.commands.doctor.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.config import LOCAL_MODEL
from equipoise.files.disk import GB
from equipoise.files.errors import EquipoiseError, first_line
from equipoise.files.hub import (
    HTTP_ERROR,
    causes_of,
    explain,
    offline_reason,
    on_this_machine,
    refuse_missing_folder,
    refuse_missing_package,
)
from equipoise.files.model_shape import model_shape
from equipoise.files.packaged_models import SMOLLM2
from equipoise.run.task import (
    NotLoadedError,
    check_readable,
    check_steps,
    make_environment,
    make_prompts,
    prepare_task,
    prompts_here,
    try_preparation,
)

_HUB_ERRORS = (HfHubHTTPError, HFValidationError, HTTP_ERROR, OSError)
_JUDGE = "Check its address, name and key, and that it runs: docs/judges.md."


def _prepared(case: Case) -> list[str]:
    """List the files that the task would make for its prompts. Raises `EquipoiseError`."""
    notes: list[str] = []
    prepare_task(case.configured, notes.append, dry_run=True)
    return notes


def prompts_of(case: Case) -> Sequence[PromptRecord] | EquipoiseError:
    """Make the prompts, or return the reason why that fails."""
    try:
        case.once(_prepared)
        records = (make_prompts if case.online else prompts_here)(case.configured)
        check_steps(case.configured, records)
    except EquipoiseError as error:
        return error
    return records


def prompts(case: Case) -> Iterator[Finding]:
    """Check the prompts, their parts, and the models that make them."""
    notes, records = list(case.once(_prepared)), case.once(prompts_of)
    data, prepares = case.config.equipoise.data, case.configured.prepares
    if data.data_path and case.job and not case.job.sees(Path(data.data_path)):
        remedy = "Add its folder to EQUIPOISE_MOUNTS."
        yield failure(f"the job's container does not see {data.data_path}", remedy)
    if isinstance(records, EquipoiseError):
        network = OfflineModeIsEnabled | ConnectionError
        if not case.online and any(isinstance(e, network) for e in causes_of(records)):
            yield unchecked("--offline: they are of the hub")
        elif prepares and not data.data_path:
            yield unchecked(f"{records.message}; a run makes them first")  # here nothing is made
        else:
            yield failure(records.message, records.remedy)
    else:
        splits = Counter(record.split for record in records)
        counted = ", ".join(f"{count:,} {split}" for split, count in splits.items())
        yield ok("; ".join([f"{counted}; from {data.data_path or data.module}", *notes]))
    if prepares:
        yield _preparation(case)


def _preparation(case: Case) -> Finding:
    """Ask the models that make the prompts one question."""
    if not case.online:
        return unchecked("--offline: no request was made")
    try:
        try_preparation(case.configured)
    except NotLoadedError as unloaded:
        return unchecked(str(unloaded))
    except (ValueError, BudgetSpentError) as error:
        return failure(str(error), _JUDGE)
    return ok("what is named answers, where something is")


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


# --- The model ------------------------------------------------------------------------------------


def model(case: Case) -> Iterator[Finding]:
    """Check the policy's model and, if it is not the model's own, the tokenizer."""
    policy = case.config.policy
    if policy.model_name == LOCAL_MODEL:
        yield ok("the task's own small one, which the run makes")
        return
    for name in dict.fromkeys((policy.model_name, policy.tokenizer.name)):
        if name == LOCAL_MODEL:
            continue
        if name == SMOLLM2:
            refuse_missing_package(name)
            yield ok(f"{name}: its package is installed")
            continue
        refuse_missing_folder(name)
        job = case.job
        folder = on_this_machine(name, job.hub if job else None)
        if not folder:
            yield on_hub(name, case)
        elif job and Path(name).is_dir() and not job.sees(folder):
            remedy = "Add its folder to EQUIPOISE_MOUNTS."
            yield failure(f"the job's container does not see {folder}", remedy)
        else:
            yield from in_folder(name, folder, case)


def in_folder(name: str, folder: Path, case: Case) -> Iterator[Finding]:
    """Check a model on this machine, and render the task's prompts in its chat template.

    Raises `EquipoiseError` where a run could not load it.
    """
    # They import transformers, which takes seconds.
    from equipoise.files.pretrained import check_model, load_tokenizer
    from equipoise.run.tokenizer import template_of

    policy = case.config.policy
    if name == policy.model_name:
        check_model(str(folder))
    shape = model_shape(str(folder))
    size = f", {shape.parameters / GB:.2g} billion parameters" if shape else ""
    yield ok(f"{name}: on this machine{size}")
    if name != policy.tokenizer.name:
        return
    tokenizer = load_tokenizer(policy.model_name, str(folder), template_of(policy.tokenizer))
    records = case.once(prompts_of)  # the check of the prompts tells what is wrong with them
    if not isinstance(records, EquipoiseError) and (note := check_readable(tokenizer, records)):
        yield warning(note, "Nothing is to be done, if that is meant.")


def on_hub(name: str, case: Case) -> Finding:
    """Check a model to download. Raises `EquipoiseError` where the hub refuses it."""
    gated = "whether it is gated is not known: the hub was not asked"
    if not case.online:
        return unchecked(f"{name} is not on this machine; {gated}")
    # This fails within seconds; the hub's own client waits for a silent server for ever.
    if reason := offline_reason():
        message = f"{name} is not on this machine, and {reason}"
        if "HF_HUB_OFFLINE" not in reason or case.place == "elsewhere":
            return unchecked(message)
        return failure(
            message, f"Where there is a network: `hf download {name}` into the same HF_HOME."
        )
    try:
        # A job has an HF_HOME of its own, without the login of this machine.
        token = (case.job.environment.get("HF_TOKEN") or False) if case.job else None
        HfApi().auth_check(name, token=token)
    except _HUB_ERRORS as error:
        response = getattr(error, "response", None)
        is_away = response is None or response.status_code >= 500
        if is_away and not isinstance(error, HFValidationError):
            return unchecked(f"the hub does not answer for {name}: {first_line(error)}")
        raise explain(name, error) from error
    return ok(f"{name}: the hub gives it; the first start downloads it")
