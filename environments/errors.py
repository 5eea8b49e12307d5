"""Errors that a person can put right."""


class CodedError(Exception):
    """An error with a code, `<place>.<fault>`: it stays where the message is improved."""

    def __init__(self, code: str, message: str) -> None:
        # `args` stay those of the call, whatever its signature: so the error can be pickled.
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


def code_of(error: BaseException | None, default: str) -> str:
    """Return the code of an error, `default` where it has none."""
    return error.code if isinstance(error, CodedError) else default
