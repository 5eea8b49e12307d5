"""JSON lines from elsewhere: each fault is reported with the number of its line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from environments.base import CodedError
from environments.yaml_file import shown_faults

# --- faults ---------------------------------------------------------------------------------------
# How data is refused: one error that lists what is wrong with it, each fault with its place.


class DataError(CodedError, ValueError):
    """Data that cannot be used: a file, a folder, a data set.

    `kind` is what it should have been. A fault names its place, in a form of its source: `line 3:`.
    """

    def __init__(self, code: str, source: Path | str, kind: str, faults: Sequence[str]) -> None:
        lines = [f"  {fault}" for fault in shown_faults(faults)]
        super().__init__(code, "\n".join([f"{source} is not a valid {kind}:", *lines]))


class UnsuitablePromptsError(CodedError, ValueError):
    """Prompts that a task's local model cannot read."""


def row_faults(error: ValidationError) -> str:
    """Say what is wrong with a row, each fault with its key."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    keys = (".".join(map(str, detail["loc"])) for detail in details)
    faults = zip(keys, details, strict=True)
    return "; ".join(": ".join(filter(None, (key, detail["msg"]))) for key, detail in faults)


def named_faults(ids_of: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each fault that prompts have, with how many they are and the first one."""
    return [
        f"{len(ids)} {fault}: {ids[0]}{', ...' if len(ids) > 1 else ''}"
        for fault, ids in ids_of.items()
        if ids
    ]


# --- text files -----------------------------------------------------------------------------------


def read_source(path: Path, kind: str) -> str:
    """The text of a file of this kind. Raises `DataError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            "source.unreadable-file", path, kind, [f"cannot be read: {error.strerror}"]
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(
            "source.other-encoding", path, kind, [f"is not UTF-8 at byte {error.start}"]
        ) from None


def parse_json(text: str, line: int = 1, **options: Any) -> Any:
    """The value of a text that begins in `line`; `options` are those of `json.loads`.

    Raises `ValueError` with the line and what is wrong with it.
    """
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        raise ValueError(f"line {line}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError(f"line {line}: nested too deeply") from None
    except ValueError:  # Python reads no integer of thousands of digits
        raise ValueError(f"line {line}: a number of too many digits") from None


def json_lines(text: str, faults: list[str]) -> Iterator[tuple[int, Any]]:
    """(number, value) of each line that holds JSON; those that do not join `faults`.

    Only a line feed ends a line: others that Unicode knows may be in a JSON string as they are.
    A file that begins with no object, such as a table, is one fault and not one in each line.
    """
    if (start := text.lstrip()[:1]) and start not in "{[":
        faults.append(f"line 1: not valid JSON: begins with {start!r}, where lines are objects")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                value = parse_json(line, number)
            except ValueError as error:
                faults.append(str(error))
            else:
                yield number, value
