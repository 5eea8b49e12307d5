"""`equipoise prepare` and `equipoise seal`: prompts.jsonl with its manifest, without a run."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from tyro.conf import Positional

from data_prep.contract import DataModule, DataSettings, Tools, unfit_data
from environments.base import Message, PromptRecord, code_of
from environments.chat import BudgetSpentError, ChatModel
from equipoise.config.compose import task_file, tasks
from equipoise.config.load import MODULE_KEY, UnfitCodeError, find_class
from equipoise.config.validate import validate
from equipoise.config.words import option
from equipoise.files.console import Reporter
from equipoise.files.disk import write_jsonl
from equipoise.files.errors import EquipoiseError, UsageError, first_line
from equipoise.files.records import DataError, manifest_path, read_unsealed, write_prompts
from equipoise.run.task import load_encoder

_KEYS = "`equipoise prepare TASK` lists the keys."
#: Conversations that --examples writes.
_EXAMPLES = 2000


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Make the prompts of a task, and what they need: prompts.jsonl with its manifest.

    The keys are those of equipoise.data in a configuration; a task alone has them listed.
    In place of a task there may be a data module of your own, my_package.MyData.

    --examples writes conversations in the task's format of reply, to fine-tune a model that never
    answers in it (docs/own-data.md).

    Examples:
        equipoise prepare TASK
        equipoise prepare TASK num_samples=2304 seed=1 --output-dir data
        equipoise prepare TASK --examples examples/task.jsonl
    """

    task: Annotated[str, Positional, option("a task, or a data module", "TASK")]
    assignments: Annotated[
        tuple[str, ...], Positional, option("any key of equipoise.data", "key=value")
    ] = ()
    output_dir: Annotated[Path | None, option("the folder to write to", "DIR")] = None
    examples: Annotated[Path | None, option("conversations to fine-tune on, JSONL", "FILE")] = None


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
    if options.output_dir is options.examples is None and not options.assignments:
        rows = list(described_keys(module.PromptSettings))
        width = max((len(key) for key, _ in rows), default=0)
        lines = [f"  {key:<{width}}  {about}".rstrip() for key, about in rows]
        reporter.say("\n".join(["keys and their defaults:", *lines]))
        return
    settings = read_settings(module.PromptSettings, options.assignments)
    folder, examples = options.output_dir, options.examples
    if folder is examples is None:
        raise UsageError(
            "prepare.no-folder", "no folder to write to", "Name one with --output-dir DIR."
        )
    if folder and folder.exists() and not folder.is_dir():
        raise UsageError(
            "prepare.folder-is-file", f"{folder} is a file", "Name a folder with --output-dir."
        )
    try:
        module.prepare(settings, Tools(_no_chat_model, load_encoder, reporter.say))
        records = module.build_prompts(settings)
        if folder:
            _write_prompts(folder / "prompts.jsonl", module, settings, records, reporter)
        if examples:
            _write_examples(examples, module, settings, records, reporter)
    except (ValueError, OSError, BudgetSpentError) as error:
        raise EquipoiseError(code_of(error, "prepare.failed"), str(error), _KEYS) from error


def _write_prompts(
    path: Path,
    module: DataModule,
    settings: DataSettings,
    records: Sequence[PromptRecord],
    reporter: Reporter,
) -> None:
    about = {"module": module.__module__, "settings": settings.model_dump(mode="json")}
    write_prompts(path, records, about)
    _say_counts(path, records, reporter)
    invented = f"not said by {type(settings).__module__}"
    if settings.invented is not None:
        invented = (
            "all of it, made here" if settings.invented else "no, it comes from what is named"
        )
    reporter.say(f"invented: {invented}")
    reporter.say(f"a run takes them with equipoise.data.data_path={path}")


def _write_examples(
    path: Path,
    module: DataModule,
    settings: DataSettings,
    records: Sequence[PromptRecord],
    reporter: Reporter,
) -> None:
    """Write prompts with replies in the task's form, none of a prompt that a run evaluates on."""
    model = module.LocalModelSettings
    if model is None:
        raise UsageError(
            "prepare.no-examples",
            f"{type(module).__name__} has no imitated_replies, which give examples of replies",
            "Write the file yourself; docs/own-data.md shows a line.",
        )
    shared = settings.model_dump(include=settings.model_fields_set & model.model_fields.keys())
    local = model.model_validate(shared | {"steps": _EXAMPLES, "batch_size": 1})
    conversations = [
        {"messages": [*record.messages, Message(role="assistant", content=reply)]}
        for record, reply in module.imitated_replies(records, local)
    ]
    write_jsonl(path, conversations)
    reporter.say(f"{path}: {len(conversations):,} conversations; docs/own-data.md trains on them")


def seal(options: SealOptions, reporter: Reporter) -> None:
    """Check every line of a file, and write it with its manifest. Raises `EquipoiseError`."""
    try:
        records = read_unsealed(options.file)
        write_prompts(options.file, records, {"sealed": "by hand"})
    except (DataError, OSError) as error:
        raise EquipoiseError(
            code_of(error, "seal.unreadable-file"), str(error), "docs/own-data.md shows a line."
        ) from error
    _say_counts(options.file, records, reporter)


def _say_counts(path: Path, records: Sequence[PromptRecord], reporter: Reporter) -> None:
    splits = Counter(record.split for record in records)
    listed = ", ".join(f"{count:,} {split}" for split, count in splits.items())
    reporter.say(f"{path}: {listed}\n{manifest_path(path)}: how they were made, and their hash")


# --- the data module -----------------------------------------------------------------------------


def find_task(task: str) -> DataModule:
    """The data module of a task, or one of the user's by its class. Raises `UsageError`."""
    path = task
    if task in tasks():
        path = yaml.safe_load(task_file(task).read_text("utf-8"))["equipoise"]["data"]["module"]
    try:
        module: DataModule = find_class(path, MODULE_KEY, unfit_data)()
    except UnfitCodeError as error:
        raise UsageError(
            "prepare.unknown-task",
            f"{task} is not a task: {error.problem.message}",
            f"Take {', '.join(tasks())}, or a class of your own: docs/own-task.md.",
        ) from error
    return module


def _no_chat_model(name: str) -> ChatModel:
    raise ValueError(
        f"{name} is loaded by the recipe alone: run that with --planner-only, or name an endpoint"
    )


# --- its settings --------------------------------------------------------------------------------


def read_settings(model: type[DataSettings], words: Sequence[str]) -> DataSettings:
    """The settings that `key=value` words give. Raises `UsageError` with all that is wrong."""
    if mismatches := [word for word in words if "=" not in word]:
        raise UsageError(
            "prepare.invalid-word", f"{mismatches[0]!r} is not a key=value, such as seed=1", _KEYS
        )
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(words)), resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise UsageError(
            "prepare.invalid-yaml", f"a value is not YAML: {first_line(error)}", _KEYS
        ) from None
    settings, problems = validate(values, model)
    if settings is None:
        lines = [": ".join(filter(None, (p.keys[0], p.message))) for p in problems]
        raise UsageError(
            "prepare.invalid-settings", "\n  ".join(["the settings are wrong:", *lines]), _KEYS
        )
    return settings


def described_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key=default, description) of every setting, nested ones included."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from described_keys(type(default), f"{prefix}{name}.")
        else:
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            about = field.description or ", ".join(map(str, choices))
            yield f"{prefix}{name}={_as_word(default)}", about


def _as_word(default: Any) -> str:
    if default is PydanticUndefined:  # it has to be given
        return "..."
    return default if isinstance(default, str) else json.dumps(default, default=str)
