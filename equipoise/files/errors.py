"""Errors that the user can put right: what is wrong, and what to do about it."""

import difflib
from collections.abc import Iterable
from typing import ClassVar

from environments.base import CodedError
from equipoise.files.foreign_names import OPTIONS, normalized


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


def no_such_flag(word: str, flags: Iterable[str]) -> str:
    """Say that a flag is not there, and what to use."""
    name = word.partition("=")[0]
    if text := OPTIONS.get(normalized(word)):
        return f"there is no {name}: {text}"
    near = difflib.get_close_matches(name, list(flags), n=1)
    return f"there is no {word}" + (f", did you mean {near[0]}?" if near else "; see --help")
