"""What asking a model can raise; every other trouble is a `ChatReply` without a text."""


class ChatSetupError(ValueError):
    """A model cannot be asked at all: no key in the environment, a cache that cannot be used."""


class BudgetSpentError(Exception):
    """The budget of an endpoint is used up: the run must stop, with a checkpoint."""
