"""Files that appear whole or not at all."""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# tempfile makes files that only their owner can read; a run is to be shared.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_MODEL_FILES = {".safetensors", ".bin", ".json", ".jinja"}


def write_text(path: Path, text: str) -> None:
    """Write `path` through a temporary file beside it and a rename."""
    write_lines(path, [text])


def write_lines(path: Path, chunks: Iterable[str]) -> None:
    """Like `write_text`, for text that comes in pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(chunks)
        Path(scratch).chmod(_FILE_MODE)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON; NaN and infinities become null, which every reader understands."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_lines(path, (json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows))


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Read one JSON object per line. Raises `ValueError` with the number of a bad line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not valid JSON ({error.msg})") from None


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a scratch folder, then put it in the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        fill(scratch)
        scratch.chmod(_FOLDER_MODE)
        if path.exists():
            shutil.rmtree(path)
        scratch.replace(path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def hash_folder(folder: Path) -> str:
    """Hash of the weights, configuration and tokenizer in a model folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in _MODEL_FILES:
            digest.update(file.relative_to(folder).as_posix().encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def finite(value: Any) -> Any:
    """The same value with None in place of every float that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
