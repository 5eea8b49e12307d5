"""`equipoise prepare` and `equipoise seal`: prompts.jsonl with its manifest, without a run."""

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from dotenv import load_dotenv
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from tyro.conf import Positional
from yaml import YAMLError

from data_prep.contract import DataModule, DataSettings, Tools, hook_problems
from data_prep.faults import DataError
from data_prep.records import manifest_path, read_unsealed, write_prompts
from environments.base import PromptRecord
from environments.chat import BudgetSpentError, ChatModel
from environments.errors import code_of
from equipoise.config.flags import evaluations, tasks
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.packaged import clear_errors
from equipoise.models.task_environment import load_encoder
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import option

_KEYS = "`equipoise prepare TASK` lists the keys."


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Make the prompts of a task, and what they need: prompts.jsonl with its manifest.

    The keys are those of equipoise.data in a configuration; a task alone has them listed.
    In place of a task there may be a data module of your own, my_package.my_task.

    Examples:
        equipoise prepare TASK
        equipoise prepare TASK num_samples=2304 seed=1 --output-dir data
    """

    task: Annotated[str, Positional, option("a task, or a data module", "TASK")]
    assignments: Annotated[
        tuple[str, ...], Positional, option("any key of equipoise.data", "key=value")
    ] = ()
    output_dir: Annotated[Path | None, option("the folder to write to", "DIR")] = None


@dataclass(frozen=True, slots=True)
class SealOptions:
    """Check prompts that were written by hand, and write their manifest.

    Examples:
        equipoise seal mine.jsonl
    """

    file: Annotated[Path, Positional, option("the prompts, one JSON object per line", "FILE")]


def prepare(options: PrepareOptions, reporter: Reporter) -> None:
    """Write the prompts of a task, or list its keys. Raises `EquipoiseError`."""
    module = find_task(options.task)
    if options.output_dir is None and not options.assignments:
        reporter.say("\n".join(_key_lines(module.PromptSettings)))
        return
    settings = read_settings(module.PromptSettings, options.assignments)
    folder = options.output_dir
    if folder is None:
        raise UsageError(
            "prepare.no-folder", "there is no folder to write to", "Name one with --output-dir DIR."
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "prepare.folder-is-file", f"{folder} is a file", "Name a folder with --output-dir."
        )
    load_dotenv(Path.cwd() / ".env")  # keys of the servers that models are asked at
    path = folder / "prompts.jsonl"
    about = {"module": module.name, "settings": settings.model_dump(mode="json")}
    try:
        with clear_errors():
            module.prepare(settings, Tools(_no_chat_model, load_encoder, reporter.say))
        for choice in settings.chosen:
            reporter.say(choice)
        records = module.build_prompts(settings)
        write_prompts(path, records, about)
    except (ValueError, OSError, BudgetSpentError) as error:
        raise EquipoiseError(code_of(error, "prepare.failed"), str(error), _KEYS) from error
    _say_counts(path, records, reporter)
    reporter.say(f"invented: {_invented(settings)}")
    reporter.say(f"a run takes them with equipoise.data.data_path={path}")


def _invented(settings: DataSettings) -> str:
    if settings.invented is None:
        return f"not said by {type(settings).__module__}"
    return "all of it, made here" if settings.invented else "no, it comes from what is named"


def seal(options: SealOptions, reporter: Reporter) -> None:
    """Check every line of a file, and write it with its manifest. Raises `EquipoiseError`."""
    try:
        records = read_unsealed(options.file)
        write_prompts(options.file, records, {"sealed": "by hand"})
    except (DataError, OSError) as error:
        raise EquipoiseError(
            code_of(error, "seal.unreadable-file"), str(error), "docs/prompts.md shows a line."
        ) from error
    _say_counts(options.file, records, reporter)


def _say_counts(path: Path, records: Sequence[PromptRecord], reporter: Reporter) -> None:
    splits = Counter(record.split for record in records)
    listed = ", ".join(f"{count:,} {split}" for split, count in splits.items())
    reporter.say(f"{path}: {listed}\n{manifest_path(path)}: how they were made, and their hash")


# --- the data module -----------------------------------------------------------------------------


def find_task(task: str) -> DataModule:
    """The data module of a task, or one of the user's by its name. Raises `UsageError`."""
    shipped = f"Take {', '.join((*tasks(), *evaluations()))}."
    if not all(part.isidentifier() for part in task.split(".")):
        raise UsageError(
            "prepare.invalid-name", f"{task!r} is no name of a task or module", shipped
        )
    own_name = "." in task or find_spec(f"data_prep.{task}") is None
    name = task if own_name else f"data_prep.{task}"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise UsageError(
            "prepare.unknown-task", f"there is no task or module {task}", shipped
        ) from None
    if problems := list(hook_problems(module)):
        raise UsageError(
            "prepare.incomplete-module",
            f"{name}: {'; '.join(problems)}",
            "See data_prep/contract.py.",
        )
    return DataModule(module)


def _no_chat_model(name: str) -> ChatModel:
    raise ValueError(
        f"{name} is loaded by the recipe alone: run that with --planner-only, or name an endpoint"
    )


# --- its settings --------------------------------------------------------------------------------


def read_settings(model: type[DataSettings], words: Sequence[str]) -> DataSettings:
    """The settings that `key=value` words give. Raises `UsageError` with all that is wrong."""
    if mismatches := [word for word in words if "=" not in word]:
        raise UsageError(
            "prepare.invalid-word", f"{mismatches[0]!r} is no key=value, such as seed=1", _KEYS
        )
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(list(words)), resolve=True)
        return model.model_validate(values)
    except (OmegaConfBaseException, YAMLError) as error:
        raise UsageError(
            "prepare.invalid-yaml", f"a value is no YAML: {str(error).splitlines()[0]}", _KEYS
        ) from None
    except ValidationError as error:
        keys = [key.partition("=")[0] for key, _ in described_keys(model)]
        lines = [_fault(problem, keys) for problem in error.errors(include_url=False)]
        raise UsageError(
            "prepare.invalid-settings", "\n  ".join(["the settings are wrong:", *lines]), _KEYS
        ) from None


def _fault(problem: Any, keys: Sequence[str]) -> str:
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] != "extra_forbidden":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    matches = difflib.get_close_matches(key, keys, n=1)
    return f"{key}: unknown key" + (f", did you mean {matches[0]}?" if matches else "")


def _key_lines(model: type[DataSettings]) -> Iterator[str]:
    rows = list(described_keys(model))
    width = max((len(key) for key, _ in rows), default=0)
    yield "keys and their defaults:"
    yield from (f"  {key:<{width}}  {about}".rstrip() for key, about in rows)


def described_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key=default, what it is) of every setting, with the settings within settings."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from described_keys(type(default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={_as_word(default)}", field.description or _choices(field)


def _as_word(default: Any) -> str:
    if default is PydanticUndefined:  # it has to be given
        return "..."
    return default if isinstance(default, str) else json.dumps(default, default=str)


def _choices(field: FieldInfo) -> str:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return ", ".join(map(str, choices))
