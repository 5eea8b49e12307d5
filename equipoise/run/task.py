"""A task made ready: its environment, here or in a Ray actor, and its prompts.

Environments are light; the models that they need are loaded and handed in here. Preparation and
check of prompts are methods of a task's data module, see data_prep/contract.py.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from data_prep.contract import Tools
from environments.base import TRAIN_SPLIT, PromptRecord, SetupError, code_of
from environments.chat import BudgetSpentError, ChatModel
from environments.contract import Encoder, EncoderSettings, Environment
from equipoise.config import LoadedConfig, check_prompts, control_token_problems
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.hub import located, offline
from equipoise.files.records import DataError, read_prompts
from equipoise.files.template import check_template, control_tokens


def build_environment(class_name: str, settings: Mapping[str, Any], cache_dir: str) -> Environment:
    """The environment `package.module.Class` with the keys of `env.<name>`, ready to score."""
    module, _, name = class_name.rpartition(".")
    environment_class = getattr(importlib.import_module(module), name)
    environment = make_environment(
        environment_class, environment_class.Settings.model_validate(dict(settings))
    )
    provide_models(environment, cache_dir)
    return environment


def make_environment(environment_class: type[Environment], settings: BaseModel) -> Environment:
    """The environment alone. Raises `EquipoiseError` when something it needs is missing."""
    try:
        return environment_class(settings)
    except SetupError as error:
        raise EquipoiseError(error.code, str(error), error.remedy) from error


def provide_models(environment: Environment, cache_dir: str) -> None:
    """Load the encoder and the chat model that an environment wants in this process."""
    if settings := environment.wanted_encoder():
        environment.set_encoder(load_encoder(settings))
    if name := environment.wanted_chat_model():
        environment.set_chat_model(load_chat_model(name, cache_dir))


# Imported where they are needed, for they bring torch.


@lru_cache(maxsize=1)  # planner and generator are often one model, which is large
def load_chat_model(name: str, cache_dir: str) -> ChatModel:
    """A Hugging Face model in this process; its answers are kept below `equipoise.cache_dir`.

    Raises `EquipoiseError` when it cannot be had.
    """
    from equipoise.run.chat_model import HuggingFaceChatModel

    answers = Path(cache_dir).expanduser() / "chat"
    return HuggingFaceChatModel(located(name, cache_dir), cache_dir=answers)


@lru_cache(maxsize=1)  # a task's preparation and its environment want the same one
def load_encoder(settings: EncoderSettings) -> Encoder:
    """A Hugging Face encoder. Raises `EquipoiseError` when it cannot be had."""
    from equipoise.files.pretrained import LOADING_ERRORS
    from equipoise.run.encoder import HuggingFaceEncoder

    try:
        return HuggingFaceEncoder(settings)
    except LOADING_ERRORS as error:
        names = " and ".join(dict.fromkeys((settings.query_model, settings.passage_model)))
        remedy = "Name a folder, or a model on the Hugging Face hub, which needs a network."
        raise EquipoiseError(
            "encoder.unloadable", f"the encoder {names} cannot be loaded: {error}", remedy
        ) from error


# --- prompts --------------------------------------------------------------------------------------

#: Of a run that stops because the requests that its models may be sent are used up.
BUDGET_REMEDY = "Continue with --resume, which grants the budget anew, or raise it before."
_TASK_REMEDY = "Change equipoise.data or env in the configuration."


def prepare_task(
    loaded: LoadedConfig, say: Callable[[str], None], *, dry_run: bool = False, ask: bool = False
) -> None:
    """Let the task make what its prompts and its environment need. Raises `EquipoiseError`.

    A dry run makes nothing; with `ask` each of its models is asked one question.
    """
    cache = loaded.config.equipoise.cache_dir
    tools = Tools(lambda name: load_chat_model(name, cache), load_encoder, say, dry_run, ask)
    try:
        # A dry run fetches nothing; with `ask` a model may be, to be asked.
        with offline() if dry_run and not ask else nullcontext():
            loaded.data_module.prepare(loaded.prompt_settings, tools)
    except ValueError as error:
        raise EquipoiseError(
            code_of(error, "prompts.unprepared-task"), str(error), _TASK_REMEDY
        ) from error
    except BudgetSpentError as error:  # what was made so far is kept
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error


class NotLoadedError(Exception):
    """Loading a model into this process would be necessary."""


def try_preparation(loaded: LoadedConfig) -> None:
    """Ask each model that makes the prompts one question, and load none.

    Raises `NotLoadedError` for a model of this process, else what preparation does.
    """
    tools = Tools(_not_loaded, _not_loaded, lambda _: None, dry_run=True, trial=True)
    loaded.data_module.prepare(loaded.prompt_settings, tools)


def _not_loaded(model: Any) -> NoReturn:
    raise NotLoadedError(f"{model} is of this process, and is not loaded for a check")


def make_prompts(loaded: LoadedConfig, *, to_train: bool = True) -> Sequence[PromptRecord]:
    """Read `equipoise.data.data_path` where it is set, else ask the task's data module.

    Raises `EquipoiseError` with every reason why they cannot be trained on. Without `to_train`
    there may be none to train on, and an environment that sees no sets may be given sets of any
    size.
    """
    path = loaded.config.equipoise.data.data_path
    settings = loaded.prompt_settings
    if to_train and not path and settings.no_training:
        raise UsageError("prompts.no-training", settings.no_training, "Nothing was started.")
    records = read_records(Path(path)) if path else _build(loaded)
    size = loaded.set_size
    problems = check_prompts(records, size if to_train or size > 1 else None, to_train=to_train)
    problems += loaded.data_module.prompt_problems(records)
    problems += loaded.env_settings.prompt_problems(records)
    if problems:
        raise EquipoiseError(
            "prompts.unusable",
            "\n".join(["the prompts cannot be used:", *problems]),
            "Correct the file, or let equipoise.data.module make the prompts.",
        )
    return records


def check_steps(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> None:
    """Raise `UsageError` where a step takes more prompts than there are, or a stage has none."""
    split = loaded.config.equipoise.evaluation.split
    splits = Counter(record.split for record in records)
    if split not in splits:  # the baseline would have no reply, which shows when a model is loaded
        counts = ", ".join(f"{count:,} {name}" for name, count in splits.items())
        raise UsageError(
            "prompts.no-evaluation-split",
            f"no prompt is of the split {split}, on which a run is evaluated; there are {counts}",
            "Name one of these splits in equipoise.evaluation.split, or correct the prompts' own.",
        )
    available = splits[TRAIN_SPLIT]
    prompts = loaded.config.grpo.num_prompts_per_step
    if prompts > available:
        size = loaded.set_size
        raise UsageError(
            "prompts.too-few",
            f"grpo.num_prompts_per_step is {prompts}, and there are {available} prompts to train "
            "on",
            f"Lower it with --batch-size {available - available % size}, or make more prompts with "
            "--num-samples where there are more.",
        )


def prompts_here(loaded: LoadedConfig, *, to_train: bool = True) -> Sequence[PromptRecord]:
    """`make_prompts` for a dry run: of what is on this machine, for nothing is fetched."""
    with offline():
        try:
            return make_prompts(loaded, to_train=to_train)
        except UsageError as error:
            remedy = f"{error.remedy} A dry run fetches nothing."
            raise UsageError(error.code, error.message, remedy) from error


def check_readable(tokenizer: Any, records: Sequence[PromptRecord]) -> str:
    """Render prompts for the policy, and return a warning for the user, if any.

    Raises `EquipoiseError` for those that hold special tokens of the model's tokenizer, and as
    `check_template` does.
    """
    if problems := control_token_problems(records, control_tokens(tokenizer)):
        raise EquipoiseError(
            "prompts.control-tokens",
            "\n".join(["the prompts cannot be used with this model:", *problems]),
            "Correct the file of the prompts and start a new run.",
        )
    return check_template(tokenizer, records)


def read_records(path: Path) -> list[PromptRecord]:
    """Read prompts.jsonl; a corrupt record is the user's error, with its line number."""
    try:
        return read_prompts(path)
    except DataError as error:
        raise EquipoiseError(
            error.code,
            str(error),
            f"A file that was made or changed by hand is checked and sealed by "
            f"`uv run equipoise seal {path}`.",
        ) from error


def _build(loaded: LoadedConfig) -> list[PromptRecord]:
    try:
        return loaded.data_module.build_prompts(loaded.prompt_settings)
    except ValueError as error:
        raise UsageError(
            code_of(error, "prompts.failed-build"),
            str(error),
            "Change equipoise.data in the configuration.",
        ) from error
