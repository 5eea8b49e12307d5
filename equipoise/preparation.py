"""What a task makes before its prompts, and what its environment is handed.

A data module may have, see data_prep/__init__.py,

    prepare(settings, tools)             makes corpora, indexes, cached plans
    check(settings, records, environment) -> rows of `--dry-run`
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.tools import Tools
from environments.base import Environment, PromptRecord
from environments.chat import ChatModel, ChatSetupError, NeedsChatModel
from environments.encoder import Encoder, EncoderSettings, NeedsEncoder
from equipoise.config import LoadedConfig
from equipoise.config.dry_run import Row
from equipoise.errors import EquipoiseError

_REMEDY = "Change equipoise.data or env in the configuration."


def prepare_task(
    loaded: LoadedConfig, say: Callable[[str], None], *, dry_run: bool = False
) -> None:
    """Let the task make what its prompts and its environment need. Raises `EquipoiseError`."""
    prepare = getattr(loaded.data_module, "prepare", None)
    if prepare is None:
        return
    tools = Tools(_chat_model, _encoder, say, dry_run)
    try:
        prepare(loaded.prompt_settings, tools)
    except ValueError as error:
        raise EquipoiseError(str(error), _REMEDY) from error


def check_task(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> list[Row]:
    """What the task finds when it goes through its parts once, for `--dry-run`."""
    check = getattr(loaded.data_module, "check", None)
    if check is None:
        return []
    environment = make_environment(loaded)
    try:
        return [Row(*row) for row in check(loaded.prompt_settings, records, environment)]
    except ValueError as error:
        raise EquipoiseError(str(error), _REMEDY) from error


def make_environment(loaded: LoadedConfig) -> Environment:
    """The environment of a run. Raises `EquipoiseError` when its endpoint cannot be asked."""
    try:
        return loaded.environment_class(loaded.env_settings)
    except ChatSetupError as error:
        raise EquipoiseError(str(error), "Keys go into .env, see docs/judge-client.md.") from error


def hand_in_encoder(environment: Environment) -> None:
    """Load the encoder that an environment wants."""
    if isinstance(environment, NeedsEncoder) and (settings := environment.wanted_encoder()):
        environment.set_encoder(_encoder(settings))


def hand_in_chat_model(environment: Environment, cache_dir: Path) -> None:
    """Load the chat model that an environment wants in this process."""
    if isinstance(environment, NeedsChatModel) and (name := environment.wanted_chat_model()):
        environment.set_chat_model(_chat_model(name, cache_dir))


# Imported where they are needed, for they bring torch.


def _chat_model(name: str, cache_dir: Path | None = None) -> ChatModel:
    module: Any = importlib.import_module("equipoise.chat_model")
    model: ChatModel = module.HuggingFaceChatModel(name, cache_dir=cache_dir)
    return model


def _encoder(settings: EncoderSettings) -> Encoder:
    module: Any = importlib.import_module("data_prep.rag_encoder")
    encoder: Encoder = module.HuggingFaceEncoder(settings)
    return encoder
