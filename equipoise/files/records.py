"""Files of rows: those of others, whose faults are reported by line, and our prompts.jsonl.

One prompt record per line, and a manifest beside it:

    prompts.jsonl           {"id": ..., "task": ..., "messages": [...], "set_id": ..., ...}
    prompts.manifest.json   {"schema": 1, "sha256": ..., "prompts": {split: n}, ..., "about": {...}}

The manifest is written last, so that an interrupted write leaves a pair that does not match.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError, field_validator

from environments.base import CodedError, PromptRecord
from environments.replies import is_broken
from environments.yaml_file import shown_faults
from equipoise.files.disk import finite, write_json, write_text

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


def key_faults(error: ValidationError) -> list[str]:
    """Say what is wrong with a row, each fault with its key: `messages.0.role: ...`."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    keys = (".".join(map(str, detail["loc"])) for detail in details)
    faults = zip(keys, details, strict=True)
    return [": ".join(filter(None, (key, detail["msg"]))) for key, detail in faults]


def row_faults(error: ValidationError) -> str:
    return "; ".join(key_faults(error))


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
    """Yield (number, value) of each line that holds JSON; append the faults of others to `faults`.

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


# --- prompts.jsonl --------------------------------------------------------------------------------

KIND = "prompt file"


def _whole(text: str) -> str:
    if is_broken(text):
        raise ValueError("holds half of a surrogate pair, or the character NUL")
    return text


#: numpy drops a NUL at the end of a name, and half of a surrogate pair has no bytes in UTF-8.
Name = Annotated[str, AfterValidator(_whole)]
Filled = Annotated[str, Field(min_length=1), AfterValidator(_whole)]


class _Turn(BaseModel, extra="forbid", strict=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Line(BaseModel, extra="forbid", strict=True):
    """The fields of `PromptRecord`, checked."""

    id: Filled
    task: Filled
    messages: tuple[_Turn, ...] = Field(min_length=1)
    set_id: Filled
    split: Filled
    metadata: dict[str, JsonValue]

    @field_validator("metadata")
    @classmethod
    def _finite(cls, metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if finite(metadata) != metadata:
            raise ValueError("NaN and infinity are not JSON")
        return metadata

    def record(self) -> PromptRecord:
        return PromptRecord(
            id=self.id,
            task=self.task,
            messages=tuple({"role": m.role, "content": m.content} for m in self.messages),
            set_id=self.set_id,
            split=self.split,
            metadata=self.metadata,
        )


class _Manifest(BaseModel):
    schema_version: Literal[1] = Field(default=1, alias="schema")
    sha256: str  # of the lines
    prompts: dict[str, int]  # split -> how many
    sets: int
    about: dict[str, Any]  # how they were made


def manifest_path(path: Path) -> Path:
    return path.with_suffix(".manifest.json")


def content_hash(records: Iterable[PromptRecord]) -> str:
    """SHA-256 of the records as lines: the hash that `write_prompts` puts into the manifest."""
    return hashlib.sha256(_jsonl(records).encode()).hexdigest()


def write_prompts(path: Path, records: Sequence[PromptRecord], about: Mapping[str, Any]) -> None:
    """Write the records, then their manifest; `about` says how they were made."""
    lines = _jsonl(records)
    manifest = _Manifest(
        sha256=hashlib.sha256(lines.encode()).hexdigest(),
        prompts=Counter(record.split for record in records),
        sets=len({record.set_id for record in records}),
        about=dict(about),
    )
    write_text(path, lines)
    write_json(manifest_path(path), manifest.model_dump(by_alias=True))


def read_prompts(path: Path) -> list[PromptRecord]:
    """The records of a prompt file. Raises `DataError` with everything that is wrong."""
    data = _read_bytes(path)
    records, problems = _read_lines(data.splitlines())
    problems = _manifest_problems(manifest_path(path), data) + problems
    if problems:
        raise DataError("prompts.invalid-file", path, KIND, problems)
    return records


def read_unsealed(path: Path) -> list[PromptRecord]:
    """The records of a file that was written by hand; its manifest is ignored.

    Raises `DataError` with everything that is wrong.
    """
    records, problems = _read_lines(_read_bytes(path).splitlines())
    if problems:
        raise DataError("prompts.invalid-lines", path, KIND, problems)
    return records


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            "prompts.unreadable-file", path, KIND, [f"cannot be read: {error.strerror}"]
        ) from None


def _read_lines(lines: Sequence[bytes]) -> tuple[list[PromptRecord], list[str]]:
    records, problems = [], []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = _Line.model_validate_json(line).record()
        except ValidationError as error:
            problems += [f"line {number}: {problem}" for problem in key_faults(error)]
            continue
        first = line_of.setdefault(record.id, number)
        if first != number:
            problems.append(f"line {number}: id {record.id!r} is that of line {first} too")
        records.append(record)
    return records, problems if lines else ["holds no records"]


def _manifest_problems(path: Path, data: bytes) -> list[str]:
    try:
        manifest = _Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        return [f"its manifest {path.name} cannot be read: {error.strerror}"]
    except ValidationError as error:
        return [f"its manifest {path.name}: {fault}" for fault in key_faults(error)]
    if manifest.sha256 != hashlib.sha256(data).hexdigest():
        return [f"its hash is not the one in {path.name}: one of the two was changed"]
    return []


def _jsonl(records: Iterable[PromptRecord]) -> str:
    lines = (json.dumps(asdict(r), ensure_ascii=False, allow_nan=False) for r in records)
    return "".join(f"{line}\n" for line in lines)
