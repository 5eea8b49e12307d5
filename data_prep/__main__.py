"""Makes the prompts of a task, and what they need: prompts.jsonl with its manifest.

    python -m data_prep fairness num_samples=2304 --output data
    python -m data_prep dharma source=mine.jsonl seed=1 --output data
    python -m data_prep pubmedqa source=file path=ori_pqal.json --output data
    python -m data_prep rag --output data
    python -m data_prep my_package.my_task --output data    a data module of your own
    python -m data_prep seal mine.jsonl                     check a file and write its manifest

The keys are those of equipoise.data in a configuration; TASK --help lists them.
"""

import argparse
import difflib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from dotenv import load_dotenv
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from yaml import YAMLError

from data_prep.contract import DataModule, DataSettings, Tools, hook_problems
from data_prep.records import manifest_path, read_unsealed, write_prompts
from environments.base import PromptRecord
from environments.chat import BudgetSpentError, ChatModel
from environments.encoder import Encoder, EncoderSettings


class WrongUsageError(ValueError):
    """A command line that names what there is not."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says; leave with 2 for wrong usage and with 1 for a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep",
        usage="%(prog)s TASK [key=value ...] --output DIR\n       %(prog)s seal FILE",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("task", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write to")
    parser.add_argument("-h", "--help", action="store_true", help="this text, with a TASK its keys")
    options = parser.parse_intermixed_args(arguments)
    try:
        if options.help or options.task is None:
            keys = _help_on(find_task(options.task)) if options.task not in (None, "seal") else ()
            say("\n".join([parser.format_help(), *keys]))
        elif options.task == "seal":
            seal(options.words)
        else:
            make(options.task, options.words, options.output)
    except WrongUsageError as error:
        parser.error(str(error))
    except (ValueError, OSError, BudgetSpentError) as error:
        parser.exit(1, f"error: {error}\n")


def say(text: str) -> None:
    """Print a line, at once."""
    print(text, flush=True)  # noqa: T201


def make(task: str, words: Sequence[str], folder: Path | None) -> None:
    """Write the prompts of a task. Raises `WrongUsageError`, and `ValueError` of its hooks."""
    module = find_task(task)
    settings = read_settings(module.PromptSettings, words)
    if folder is None:
        raise WrongUsageError("name the folder to write to with --output DIR")
    if folder.exists() and not folder.is_dir():
        raise WrongUsageError(f"{folder} is a file: --output names a folder")
    load_dotenv(Path.cwd() / ".env")  # keys of the servers that models are asked at
    module.prepare(settings, Tools(_no_chat_model, _load_encoder, say))
    for choice in settings.chosen:
        say(choice)
    records = module.build_prompts(settings)
    path = folder / "prompts.jsonl"
    about = {"module": _module_name(task), "settings": settings.model_dump(mode="json")}
    write_prompts(path, records, about)
    say(_counts(path, records))
    say(f"invented: {_invented(settings)}")
    say(f"a run takes them with equipoise.data.data_path={path}")


def _invented(settings: DataSettings) -> str:
    if settings.invented is None:
        return f"not said by {type(settings).__module__}"
    return "all of it, made here" if settings.invented else "no, it comes from what is named"


def seal(words: Sequence[str]) -> None:
    """Check every line of a file that was written by hand, and write it with its manifest."""
    if len(words) != 1:
        raise WrongUsageError("seal takes one file: the prompts, one JSON object per line")
    path = Path(words[0])
    records = read_unsealed(path)
    write_prompts(path, records, {"sealed": "by hand"})
    say(_counts(path, records))


def _counts(path: Path, records: Sequence[PromptRecord]) -> str:
    splits = Counter(record.split for record in records)
    listed = ", ".join(f"{count:,} {split}" for split, count in splits.items())
    return f"{path}: {listed}\n{manifest_path(path)}: how they were made, and their hash"


# --- the data module -----------------------------------------------------------------------------


def find_task(task: str) -> DataModule:
    """The data module of a task, or one of the user's by its name. Raises `WrongUsageError`."""
    name = _module_name(task)
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        shipped = "fairness, dharma, pubmedqa, rag"
        raise WrongUsageError(f"there is no task or module {task}: take {shipped}") from None
    if problems := list(hook_problems(module)):
        raise WrongUsageError(f"{name}: {'; '.join(problems)} (see data_prep/contract.py)")
    return DataModule(module)


def _module_name(task: str) -> str:
    """The module of that name below data_prep, else the user's own."""
    if not all(part.isidentifier() for part in task.split(".")):
        raise WrongUsageError(f"{task!r} is no name of a task or module")
    shipped = f"data_prep.{task}"
    return shipped if "." not in task and find_spec(shipped) else task


def _no_chat_model(name: str) -> ChatModel:
    raise ValueError(
        f"{name} is loaded by the recipe alone: run that with --planner-only, or name an endpoint"
    )


def _load_encoder(settings: EncoderSettings) -> Encoder:
    from data_prep.rag.encoder import HuggingFaceEncoder  # imports torch

    return HuggingFaceEncoder(settings)


# --- its settings --------------------------------------------------------------------------------


def read_settings(model: type[DataSettings], words: Sequence[str]) -> DataSettings:
    """The settings that `key=value` words give. Raises `WrongUsageError` with all that is wrong."""
    if mismatches := [word for word in words if "=" not in word]:
        raise WrongUsageError(f"{mismatches[0]!r} is no key=value, such as seed=1")
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(list(words)), resolve=True)
        return model.model_validate(values)
    except (OmegaConfBaseException, YAMLError) as error:
        raise WrongUsageError(f"a value is no YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        keys = [key.partition("=")[0] for key, _ in described_keys(model)]
        lines = [_fault(problem, keys) for problem in error.errors(include_url=False)]
        raise WrongUsageError("\n  ".join(["the settings are wrong:", *lines])) from None


def _fault(problem: Any, keys: Sequence[str]) -> str:
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] != "extra_forbidden":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    matches = difflib.get_close_matches(key, keys, n=1)
    return f"{key}: unknown key" + (f", did you mean {matches[0]}?" if matches else "")


def _help_on(module: DataModule) -> Iterator[str]:
    rows = list(described_keys(module.PromptSettings))
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


if __name__ == "__main__":
    main()
