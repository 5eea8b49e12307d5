"""The environment of a task, ready to score, wherever it runs: here or in a Ray actor.

Environments are light; the models that they need are loaded and handed in here.
"""

import importlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from environments.base import SetupError
from environments.chat import ChatModel
from environments.contract import Encoder, EncoderSettings, Environment
from equipoise.files.errors import EquipoiseError
from equipoise.models.hub import clear_errors, located


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
    """The environment alone. Raises `EquipoiseError` when what it needs cannot be had."""
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
    from equipoise.models.chat import HuggingFaceChatModel

    answers = Path(cache_dir).expanduser() / "chat"
    return HuggingFaceChatModel(located(name, cache_dir), cache_dir=answers)


@lru_cache(maxsize=1)  # a task's preparation and its environment want the same one
def load_encoder(settings: EncoderSettings) -> Encoder:
    """A Hugging Face encoder. Raises `EquipoiseError` when it cannot be had."""
    from data_prep.rag.encoder import HuggingFaceEncoder
    from equipoise.models.pretrained import LOADING_ERRORS

    try:
        with clear_errors():
            return HuggingFaceEncoder(settings)
    except LOADING_ERRORS as error:
        names = " and ".join(dict.fromkeys((settings.query_model, settings.passage_model)))
        remedy = "Name a folder, or a model on the Hugging Face hub, which needs a network."
        raise EquipoiseError(
            "encoder.unloadable", f"the encoder {names} cannot be loaded: {error}", remedy
        ) from error
