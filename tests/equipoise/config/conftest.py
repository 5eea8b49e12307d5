"""The configuration of a command line, loaded as a recipe does it."""

import re

import pytest

from equipoise.config import load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags
from equipoise.files.errors import UsageError


def rows(table):
    """Return the lines of a table, cells apart by ->; an indented line goes on with the last."""
    lines = re.sub(r"\n +", " ", table).strip().splitlines()
    return [tuple(cell.strip() for cell in line.split("->")) for line in lines if line]


def on_nemo_rl(name, *words):
    """Return the words that choose a shipped scale on NeMo-RL."""
    return ("--config", str(CONFIG_FOLDER / f"{name}.yaml"), "--engine", "nemo_rl", *words)


@pytest.fixture
def load():
    """The loaded configuration of the words of a command line."""
    return lambda *words: load_config("fairness", parse_flags("", words))


@pytest.fixture
def problems(load):
    """Return the lines that say what is wrong; none when the configuration is valid."""

    def lines(*words):
        try:
            load(*words)
        except UsageError as error:
            lines = [line.strip() for line in error.message.splitlines()]
            return lines[1:] if error.code == "config.problems" else lines
        return []

    return lines
