"""How data is refused: one error that lists what is wrong with it, each fault with its place."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.errors import CodedError
from environments.yaml_file import shown_faults


class DataError(CodedError, ValueError):
    """Data that cannot be used: a file, a folder, a data set.

    `kind` is what it should have been. A fault names its place, in a form of its source: `line 3:`.
    """

    def __init__(self, code: str, source: Path | str, kind: str, faults: Sequence[str]) -> None:
        lines = [f"  {fault}" for fault in shown_faults(faults)]
        super().__init__(code, "\n".join([f"{source} is not a valid {kind}:", *lines]))


class UnsuitablePromptsError(CodedError, ValueError):
    """Prompts that a task's local model cannot read."""


def first_of(names: Sequence[str], limit: int = 3) -> str:
    """So many of the names, and how many more there are."""
    remainder = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {remainder} more" if remainder > 0 else "")


def named_faults(ids_of: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each fault that prompts have, with how many they are and the first one."""
    return [
        f"{len(ids)} {fault}: {ids[0]}{', ...' if len(ids) > 1 else ''}"
        for fault, ids in ids_of.items()
        if ids
    ]
