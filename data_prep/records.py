"""prompts.jsonl: one prompt record per line, and a manifest beside it.

    prompts.jsonl           {"id": ..., "task": ..., "messages": [...], "set_id": ..., ...}
    prompts.manifest.json   {"schema": 1, "sha256": ..., "prompts": {split: n}, ..., "about": {...}}

The manifest is written last, so that an interrupted write leaves a pair that does not match.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError, field_validator

from data_prep.text_files import DataError
from environments.base import PromptRecord
from environments.replies import is_broken
from equipoise.files.disk import finite, write_json, write_text

SCHEMA_VERSION = 1

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


def manifest_path(path: Path) -> Path:
    return path.with_suffix(".manifest.json")


def content_hash(records: Iterable[PromptRecord]) -> str:
    """SHA-256 of the records as lines: the hash that `write_prompts` puts into the manifest."""
    return hashlib.sha256(_jsonl(records).encode()).hexdigest()


def write_prompts(path: Path, records: Sequence[PromptRecord], about: Mapping[str, Any]) -> None:
    """Write the records, then their manifest; `about` says how they were made."""
    lines = _jsonl(records)
    manifest = {
        "schema": SCHEMA_VERSION,
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "prompts": Counter(record.split for record in records),
        "sets": len({record.set_id for record in records}),
        "about": about,
    }
    write_text(path, lines)
    write_json(manifest_path(path), manifest)


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
            problems += [f"line {number}: {problem}" for problem in _problems(error)]
            continue
        first = line_of.setdefault(record.id, number)
        if first != number:
            problems.append(f"line {number}: id {record.id!r} is that of line {first} too")
        records.append(record)
    return records, problems if lines else ["holds no records"]


def _problems(error: ValidationError) -> list[str]:
    """List the faults of one line, each with its location: `messages.0.role: ...`."""
    errors = error.errors(include_url=False)
    places = [".".join(str(part) for part in problem["loc"]) for problem in errors]
    return [
        f"{location}: {problem['msg']}" if location else problem["msg"]
        for location, problem in zip(places, errors, strict=True)
    ]


def _manifest_problems(path: Path, data: bytes) -> list[str]:
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        return [f"its manifest {path.name} cannot be read: {error.strerror}"]
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        return [f"its manifest {path.name} is not a JSON object"]
    if manifest.get("schema") != SCHEMA_VERSION:
        version_note = f"this version reads {SCHEMA_VERSION}"
        return [f"{path.name} has schema version {manifest.get('schema')!r}; {version_note}"]
    if manifest.get("sha256") != hashlib.sha256(data).hexdigest():
        return [f"its hash is not the one in {path.name}: one of the two was changed"]
    return []


def _jsonl(records: Iterable[PromptRecord]) -> str:
    lines = (json.dumps(asdict(r), ensure_ascii=False, allow_nan=False) for r in records)
    return "".join(f"{line}\n" for line in lines)
