"""Errors that asking a model can raise; any other trouble is a `ChatReply` without a text."""

from typing import ClassVar

from environments.base import SetupError


class ChatSetupError(SetupError):
    """A model cannot be asked at all: no key in the environment, a cache that cannot be used."""

    remedy: ClassVar[str] = "Keys go into .env, see docs/judge-client.md."


class BudgetSpentError(Exception):
    """The budget of an endpoint is used up: the run must stop, with a checkpoint."""
