"""The configuration of a command line, loaded as a recipe does it."""

from collections.abc import Callable

import pytest

from equipoise.config import LoadedConfig, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.schema import Config
from equipoise.config.training_words import parse_flags
from equipoise.errors import UsageError

Load = Callable[..., LoadedConfig]
Problems = Callable[..., list[str]]


def scale(load: Load, name: str, *words: str) -> Config:
    """The configuration of a scale on NeMo-RL."""
    path = str(CONFIG_FOLDER / f"{name}.yaml")
    return load("--config", path, "--engine", "nemo_rl", *words).config


@pytest.fixture
def load() -> Load:
    """The loaded configuration of the words of a command line."""
    return lambda *words: load_config("fairness", parse_flags("", words))


@pytest.fixture
def problems(load: Load) -> Problems:
    """The lines that say what is wrong; none when the configuration is valid."""

    def lines(*words: str) -> list[str]:
        try:
            load(*words)
        except UsageError as error:
            return [line.strip() for line in error.message.splitlines()[1:]]
        return []

    return lines
