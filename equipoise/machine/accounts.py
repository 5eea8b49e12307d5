"""Checks of .env, the account with wandb, the hub's token, and the model behind it."""

import logging
import netrc
import os
import stat
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Literal

from dotenv.main import DotEnv
from dotenv.parser import parse_stream
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from data_prep.packaged_models import SMOLLM2
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.memory import GB
from equipoise.config.models import model_shape
from equipoise.config.sources import first_line
from equipoise.machine.checks import Case, Finding, failure, ok, unchecked, warning
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

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
#: What huggingface_hub reads when it is imported, which is before `.env` is read.
_READ_EARLIER = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_REFUSED = (401, 403)
_WANDB_HOST = "api.wandb.ai"
_WANDB_SECONDS = 5
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, HTTP_ERROR, OSError)


# --- .env ---------------------------------------------------------------------------------------


def env_file(case: Case) -> Iterator[Finding]:
    """A file of NAME=value lines in the current folder."""
    path, environment = Path.cwd() / ".env", case.before
    if not path.exists():
        yield ok(f"there is no {path}, so nothing is read from it")
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        yield failure(f"{path} cannot be read: {reason}")
        return
    doubts: list[Finding] = []
    parsed = list(parse_stream(StringIO(text)))
    bad = [line for line in parsed if line.error or (line.key and line.value is None)]
    if bad:  # by number alone: a line may hold a key
        lines = ", ".join(str(line.original.line) for line in bad)
        doubts.append(failure(f"no NAME=value, and not read: line {lines}"))
    mode = path.stat().st_mode
    if mode & _OTHERS:
        message = f"others may read {path}, which holds keys (mode {stat.S_IMODE(mode):o})"
        doubts.append(warning(message, f"chmod 600 {path}"))
    variables = DotEnv(None, StringIO(text), interpolate=False).dict()
    values = {name: value for name, value in variables.items() if value}
    doubts += _without_effect(values, environment)
    yield from doubts or [ok(f"{len(values)} variables of {path}")]


def _without_effect(values: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[Finding]:
    if overrides := [n for n, value in values.items() if environment.get(n, value) != value]:
        message = f"set to something else already, which counts: {', '.join(overrides)}"
        yield warning(message, "Unset it where the value of .env is meant.")
    late = [name for name in _READ_EARLIER if name in values and name not in environment]
    if late:
        message = f"libraries read {', '.join(late)} before .env is read, so it has no effect there"
        yield warning(message, "Export it in the shell, or in the script of the job.")


# --- wandb --------------------------------------------------------------------------------------


def wandb(case: Case) -> Iterator[Finding]:
    """Whether runs are tracked, and by an account that the server knows."""
    if case.loaded and not case.config.logger.wandb_enabled:
        yield ok("logger.wandb_enabled is false: runs are not tracked")
        return
    mode = wandb_mode() or case.environment.get("WANDB_MODE")
    if mode != "online":
        yield ok(f"runs are tracked on this disk alone ({mode or 'WANDB_MODE'})")
    elif not case.online:
        yield unchecked("--offline: there is a key, and the server was not asked")
    elif problem := login_problem():
        yield warning(f"the server does not take the key: {problem}")
    else:
        yield ok("the server takes the key")


def wandb_mode() -> Literal["online", "offline"] | None:
    """Online exactly when a key is there; None leaves the choice to `WANDB_MODE`."""
    if os.environ.get("WANDB_MODE"):
        return None
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    try:
        in_netrc = netrc.netrc().authenticators(_WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        in_netrc = False
    return "online" if in_netrc else "offline"


def login_problem() -> str | None:
    """Why the server does not take the key, None where it does; asks it, and imports wandb."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    logging.getLogger("wandb").setLevel(logging.CRITICAL)
    try:
        wandb.Api(timeout=_WANDB_SECONDS)
    except (wandb.Error, OSError, ValueError) as error:
        return first_line(error)
    return None


# --- the hub ------------------------------------------------------------------------------------


def hub(case: Case) -> Iterator[Finding]:
    """The hub's token; a wrong one is refused even where none is needed."""
    token = get_token()
    if token is None:
        yield ok("no token; public models need none")
    elif not case.online or constants.HF_HUB_OFFLINE:
        yield unchecked("there is a token, and the hub was not asked: offline")
    else:
        yield _ask_hub(token, needed=case.loaded is not None and needs_hub(case.config))


def _ask_hub(token: str, *, needed: bool) -> Finding:
    try:
        name = HfApi().whoami(token=token)["name"]
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in _REFUSED:
            where = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "the login on this machine"
            return (failure if needed else warning)(f"the hub refuses the token of {where}")
        return unchecked(f"the hub does not answer: {first_line(error)}")
    except (HTTP_ERROR, OSError) as error:
        return unchecked(f"the hub does not answer: {first_line(error)}")
    return ok(f"the hub knows it as that of {name}")


def needs_hub(config: Config) -> bool:
    """Whether the run will load something from there."""
    return any(name != SMOLLM2 and on_this_machine(name) is None for name in _names(config))


def model(case: Case) -> Iterator[Finding]:
    """The policy's model and, where it is from elsewhere, its tokenizer."""
    config = case.config
    if config.policy.model_name == LOCAL_MODEL:
        yield ok("the task's own small one, which the run makes")
        return
    for name in _names(config):
        if name == SMOLLM2:
            refuse_missing_package(name)
            yield ok(f"{name}: its package is installed")
            continue
        refuse_missing_folder(name)
        folder = on_this_machine(name)
        if folder:
            yield from in_folder(name, folder, config)
        else:
            yield on_hub(name, online=case.online)


def _names(config: Config) -> list[str]:
    """Model and tokenizer."""
    policy = config.policy
    names = dict.fromkeys((policy.model_name, policy.tokenizer.name))
    return [name for name in names if name != LOCAL_MODEL]


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


def on_hub(name: str, *, online: bool) -> Finding:
    """A model that the run would download. Raises `EquipoiseError` where the hub refuses it."""
    if not online:
        return unchecked(f"--offline: {name} is not on this machine, the hub was not asked")
    if constants.HF_HUB_OFFLINE:
        message = f"{name} is not on this machine, and HF_HUB_OFFLINE is set"
        remedy = f"Where there is a network: `hf download {name}` into the same HF_HOME."
        return failure(message, remedy)
    try:
        HfApi().auth_check(name)
    except _HUB_ERRORS as error:
        response = getattr(error, "response", None)
        is_away = response is None or response.status_code >= 500
        if is_away and not isinstance(error, HFValidationError):
            return unchecked(f"the hub does not answer for {name}: {first_line(error)}")
        raise explain(name, error) from error
    return ok(f"{name}: the hub gives it; the first start downloads it")
