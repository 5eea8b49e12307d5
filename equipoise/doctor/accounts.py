"""Checks of .env, the account with wandb, the hub's token, and the model behind it."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from dotenv.main import DotEnv
from dotenv.parser import parse_stream
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from data_prep.packaged_models import SMOLLM2
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.memory import GB
from equipoise.config.models import model_shape
from equipoise.doctor.checks import (
    ENV_FILE,
    HUB,
    MODEL,
    WANDB,
    Result,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.models.hub import (
    HTTP_ERROR,
    explain,
    model_problems,
    on_this_machine,
    refuse_missing_folder,
    refuse_no_weights,
    tokenizer_problems,
)
from equipoise.models.packaged import refuse_missing_package
from equipoise.train.stages.wandb_account import login_problem

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
#: What huggingface_hub reads when it is imported, which is before `.env` is read.
_READ_EARLIER = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_REFUSED = (401, 403)
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, HTTP_ERROR, OSError)


# --- .env ---------------------------------------------------------------------------------------


def env_file(path: Path, environment: Mapping[str, str]) -> Iterator[Result]:
    """A file of NAME=value lines; `environment` is as it was before the file was read."""
    if not path.exists():
        yield ok(ENV_FILE, f"there is no {path}, so nothing is read from it")
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        yield failure(ENV_FILE, f"{path} cannot be read: {reason}")
        return
    doubts = [*_unreadable_lines(text), *_open_to_others(path), *_without_effect(text, environment)]
    yield from doubts or [ok(ENV_FILE, f"{len(_values(text))} variables of {path}")]


def _unreadable_lines(text: str) -> Iterator[Result]:
    """By number alone: a line may hold a key."""
    parsed = list(parse_stream(StringIO(text)))
    bad = [line for line in parsed if line.error or (line.key and line.value is None)]
    lines = [str(line.original.line) for line in bad]
    if lines:
        yield failure(ENV_FILE, f"no NAME=value, and not read: line {', '.join(lines)}")


def _open_to_others(path: Path) -> Iterator[Result]:
    mode = path.stat().st_mode
    if mode & _OTHERS:
        message = f"others may read {path}, which holds keys (mode {stat.S_IMODE(mode):o})"
        yield warning(ENV_FILE, message, f"chmod 600 {path}")


def _without_effect(text: str, environment: Mapping[str, str]) -> Iterator[Result]:
    values = _values(text)
    if overrides := [n for n, value in values.items() if environment.get(n, value) != value]:
        message = f"set to something else already, which counts: {', '.join(overrides)}"
        yield warning(ENV_FILE, message, "Unset it where the value of .env is meant.")
    late = [name for name in _READ_EARLIER if name in values and name not in environment]
    if late:
        message = f"libraries read {', '.join(late)} before .env is read, so it has no effect there"
        yield warning(ENV_FILE, message, "Export it in the shell, or in the script of the job.")


def _values(text: str) -> dict[str, str]:
    values = DotEnv(None, StringIO(text), interpolate=False).dict()
    return {name: value for name, value in values.items() if value}


# --- wandb --------------------------------------------------------------------------------------


def wandb(
    enabled: bool, mode: str | None, *, online: bool, ask: Callable[[], str | None] = login_problem
) -> Result:
    """`mode` is that of `wandb_mode`, or what WANDB_MODE says."""
    if not enabled:
        return ok(WANDB, "logger.wandb_enabled is false: runs are not tracked")
    if mode != "online":
        return ok(WANDB, f"runs are tracked on this disk alone ({mode or 'WANDB_MODE'})")
    if not online:
        return unchecked(WANDB, "--offline: there is a key, and the server was not asked")
    problem = ask()
    if problem:
        return warning(WANDB, f"the server does not take the key: {problem}")
    return ok(WANDB, "the server takes the key")


# --- the hub ------------------------------------------------------------------------------------


def hub(*, online: bool, needed: bool) -> Result:
    """The hub's token; a wrong one is refused even where none is needed."""
    token = get_token()
    if token is None:
        return ok(HUB, "no token; public models need none")
    if not online or constants.HF_HUB_OFFLINE:
        return unchecked(HUB, "there is a token, and the hub was not asked: offline")
    try:
        name = HfApi().whoami(token=token)["name"]
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in _REFUSED:
            where = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "the login on this machine"
            build = failure if needed else warning
            return build(HUB, f"the hub refuses the token of {where}")
        return unchecked(HUB, f"the hub does not answer: {_first_line(error)}")
    except (HTTP_ERROR, OSError) as error:
        return unchecked(HUB, f"the hub does not answer: {_first_line(error)}")
    return ok(HUB, f"the hub knows it as that of {name}")


def needs_hub(config: Config | None) -> bool:
    """Whether the run will load something from there."""
    names = _names(config) if config else []
    return any(name != SMOLLM2 and on_this_machine(name) is None for name in names)


def model(config: Config, *, online: bool) -> Iterator[Result]:
    """The policy's model and, where it is from elsewhere, its tokenizer."""
    if config.policy.model_name == LOCAL_MODEL:
        yield ok(MODEL, "the task's own small one, which the run makes")
        return
    for name in _names(config):
        if name == SMOLLM2:
            refuse_missing_package(name)
            yield ok(MODEL, f"{name}: its package is installed")
            continue
        refuse_missing_folder(name)
        folder = on_this_machine(name)
        if folder:
            yield from in_folder(name, folder, config)
        else:
            yield from on_hub(name, online=online)


def _names(config: Config) -> list[str]:
    """Model and tokenizer."""
    policy = config.policy
    names = dict.fromkeys((policy.model_name, policy.tokenizer.name))
    return [name for name in names if name != LOCAL_MODEL]


def in_folder(name: str, folder: Path, config: Config) -> Iterator[Result]:
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
    failures = [failure(MODEL, f"{folder}: {problem}", remedy) for problem in problems]
    yield from failures or [ok(MODEL, f"{name}: on this machine{size}")]


def on_hub(name: str, *, online: bool) -> Iterator[Result]:
    """A model that the run would download. Raises `EquipoiseError` where the hub refuses it."""
    if not online:
        yield unchecked(MODEL, f"--offline: {name} is not on this machine, the hub was not asked")
    elif constants.HF_HUB_OFFLINE:
        message = f"{name} is not on this machine, and HF_HUB_OFFLINE is set"
        remedy = f"Where there is a network: `hf download {name}` into the same HF_HOME."
        yield failure(MODEL, message, remedy)
    else:
        yield _access(name)


def _access(name: str) -> Result:
    try:
        HfApi().auth_check(name)
    except _HUB_ERRORS as error:
        if _answered(error):
            raise explain(name, error) from error
        return unchecked(MODEL, f"the hub does not answer for {name}: {_first_line(error)}")
    return ok(MODEL, f"{name}: the hub gives it; the first start downloads it")


def _answered(error: Exception) -> bool:
    """Whether the hub refused, rather than being away."""
    if isinstance(error, HFValidationError):
        return True
    response = getattr(error, "response", None)
    return response is not None and response.status_code < 500


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
