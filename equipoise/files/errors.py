"""Errors that the user can put right: what is wrong, and what to do about it."""

from typing import ClassVar

from environments.base import CodedError


class EquipoiseError(CodedError):
    """An error that the command line shows without a traceback. `remedy` may be empty."""

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(code, message)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


class UsageError(EquipoiseError):
    """A request that cannot be done; nothing was started."""

    exit_code: ClassVar[int] = 2


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
