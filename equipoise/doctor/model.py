"""The policy's model: on this machine, or given by the hub, with a chat template that serves."""

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from data_prep.packaged_models import SMOLLM2
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.memory import GB
from equipoise.config.models import model_shape
from equipoise.config.sources import first_line
from equipoise.doctor.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.doctor.task import prompts_of
from equipoise.files.errors import EquipoiseError
from equipoise.models.hub import (
    HTTP_ERROR,
    explain,
    model_problems,
    on_this_machine,
    refuse_missing_folder,
    refuse_missing_package,
    refuse_no_weights,
    tokenizer_problems,
)

_HUB_ERRORS = (HfHubHTTPError, HFValidationError, HTTP_ERROR, OSError)


def model(case: Case) -> Iterator[Finding]:
    """The policy's model and, where it is from elsewhere, its tokenizer."""
    config = case.config
    if config.policy.model_name == LOCAL_MODEL:
        yield ok("the task's own small one, which the run makes")
        return
    policy = config.policy
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
            findings = list(in_folder(name, folder, config))
            yield from findings
            is_whole = all(finding.status == "ok" for finding in findings)
            if name == policy.tokenizer.name and is_whole:
                yield from chat_template(case, folder)


def in_folder(name: str, folder: Path, config: Config) -> Iterator[Finding]:
    """A model that is on this machine. Raises `EquipoiseError` without weights."""
    policy = config.policy
    problems: list[str] = []
    if name == policy.model_name:
        refuse_no_weights(folder)
        problems += model_problems(folder)
    if name == policy.tokenizer.name:
        has_template = policy.tokenizer.brings_template
        problems += tokenizer_problems(folder, has_template=has_template)
    remedy = (
        "Take a whole, instruction-tuned model, or set policy.tokenizer.name to one's tokenizer, "
        "or policy.tokenizer.chat_template=FILE.jinja."
    )
    shape = model_shape(str(folder))
    size = f", {shape.parameters / GB:.2g} billion parameters" if shape else ""
    failures = [failure(f"{folder}: {problem}", remedy) for problem in problems]
    yield from failures or [ok(f"{name}: on this machine{size}")]


def chat_template(case: Case, folder: Path) -> Iterator[Finding]:
    """Render the task's prompts as a run would. Raises `EquipoiseError` where that fails."""
    config = case.config
    records = case.once(prompts_of)
    if isinstance(records, EquipoiseError):
        return  # the check of the prompts tells it
    # They import transformers, which takes seconds.
    from equipoise.models.pretrained import load_tokenizer, template_of
    from equipoise.models.template import check_template

    name = config.policy.model_name
    tokenizer = load_tokenizer(name, str(folder), template_of(config.policy.tokenizer))
    if note := check_template(tokenizer, records):
        yield warning(note, "Nothing is to be done, if that is meant.")


def on_hub(name: str, case: Case) -> Finding:
    """A model that the run would download. Raises `EquipoiseError` where the hub refuses it."""
    gated = "whether it is gated is not known: the hub was not asked"
    if not case.online:
        return unchecked(f"{name} is not on this machine; {gated}")
    if constants.HF_HUB_OFFLINE:
        message = f"{name} is not on this machine, and HF_HUB_OFFLINE is set"
        remedy = f"Where there is a network: `hf download {name}` into the same HF_HOME."
        return unchecked(message) if case.place == "elsewhere" else failure(message, remedy)
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
