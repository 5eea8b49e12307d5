"""Write files atomically, and read untrusted JSON and YAML within bounds."""

import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.nodes import MappingNode, Node, SequenceNode

from environments.base import CodedError
from environments.yaml_file import CheckedLoader
from equipoise.files.errors import EquipoiseError

M = TypeVar("M", bound=BaseModel)
GB = 10**9
#: Where what can be made again is kept unless `equipoise.cache_dir` says otherwise.
CACHE_DIR = "~/.cache/equipoise"
# tempfile makes files that only their owner can read; a run is to be shared.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_PARTIAL = ".partial"
#: The end of a file's name while it is written; its writer holds a lock on it.
_UNFINISHED = ".unfinished"
#: Errors of a rename onto a path that exists.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


class DamagedFileError(CodedError, ValueError):
    """A file with invalid content; the message says where."""

    def __init__(self, code: str, path: Path, reason: str, line: int | None = None) -> None:
        location = f"{path}, line {line}" if line else str(path)
        super().__init__(code, f"{location}: {reason}")


def in_gb(size: float, decimals: int = 0) -> str:
    return f"{size / GB:,.{decimals}f} GB"


def write_text(path: Path, text: str) -> None:
    """Write `path` through a temporary file beside it and a rename."""
    write_lines(path, [text])


def write_lines(path: Path, chunks: Iterable[str]) -> None:
    """Like `write_text`, for text that comes in pieces.

    Half of a surrogate pair, which UTF-8 has no bytes for, is written as JSON's escape for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED
    )
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            _lock(file.fileno(), fcntl.LOCK_EX)  # a process that looks at it holds it briefly
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
            Path(scratch).chmod(_FILE_MODE)
            Path(scratch).replace(path)  # before the lock goes with the descriptor
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON; NaN and infinities become null, which every reader understands."""
    write_text(path, _json(value, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_lines(path, (_json(row) + "\n" for row in rows))


def _json(value: Any, indent: int | None = None) -> str:
    """Write JSON; `finite` takes as long as all the rest, so only what needs it is copied by it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except (TypeError, ValueError):  # a mapping other than a dict, a NaN
        return json.dumps(finite(value), ensure_ascii=False, indent=indent)


def read_json(path: Path) -> Any:
    return parse_json(path, path.read_bytes())


def read_jsonl(path: Path) -> Iterator[Any]:
    """Read one JSON value per line. Raises `DamagedFileError` with the number of a bad line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield parse_json(path, line, number)


def read_model(path: Path, kind: type[M], code: str, remedy: str) -> M:
    """Read a JSON file into the class that wrote it. Raises `EquipoiseError` if it is damaged."""
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        raise EquipoiseError(code, f"{path}: {_first_fault(error, 'the file')}", remedy) from None
    except (OSError, ValueError) as error:
        raise EquipoiseError(code, f"{path} cannot be read: {error}", remedy) from None


def check_line(path: Path, number: int, row: Any, kind: type[M], code: str) -> M:
    """The value of a line as the class that wrote it. Raises `DamagedFileError`."""
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        raise DamagedFileError(code, path, _first_fault(error, "the line"), number) from None


def _first_fault(error: ValidationError, subject: str) -> str:
    """Name the place of the first fault and the fault; the place may be all of `subject`."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or subject}: {first['msg']}"


def parse_json(path: Path, data: bytes, line: int | None = None) -> Any:
    """The JSON value of a file or of one line. Raises `DamagedFileError`."""
    try:
        return json.loads(data.decode(), **_NUMBERS)
    except RecursionError:
        raise DamagedFileError("file.deep-json", path, "is nested too deeply", line) from None
    except json.JSONDecodeError as error:
        raise DamagedFileError(
            "file.invalid-json", path, f"not valid JSON ({error.msg})", line
        ) from None
    except ValueError as error:
        raise DamagedFileError(
            "file.refused-json", path, f"not valid JSON ({error})", line
        ) from None


def _refuse_number(text: str) -> Any:
    """`json` reads NaN and Infinity, which are neither JSON nor a measurement."""
    raise ValueError(f"{text:.40} is not a finite number")


def _finite_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _finite_int(text: str) -> int:
    """Refuse integers beyond the range of floats, on which arithmetic would fail."""
    _finite_float(text)
    return int(text)


_NUMBERS: Any = {
    "parse_constant": _refuse_number,
    "parse_float": _finite_float,
    "parse_int": _finite_int,
}


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a scratch folder, then put it in the place of `path`."""
    with scratch_folder(path) as scratch:
        fill(scratch)
        if path.exists():
            shutil.rmtree(path)
        scratch.replace(path)


def create_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a folder that is new or empty. Raises `FileExistsError` for any other.

    It is on the disk before it has its name, so that a power cut leaves no half of it there.
    """
    with scratch_folder(path) as scratch:
        fill(scratch)
        for entry in (*scratch.rglob("*"), scratch):
            flush(entry)
        try:
            scratch.replace(path)
        except OSError as error:
            if error.errno in _TAKEN:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise
        flush(path.parent)


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path`; it is gone afterwards unless it was moved.

    First remove the folders that killed processes left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}"):
        _remove_unlocked(leftover)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL))
    try:
        with _locked(scratch, wait=True):  # a process that looks at it holds the lock briefly
            scratch.chmod(_FOLDER_MODE)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes were writing into a folder, as far as locks can tell.

    Keep the files of live processes, and empty files, which may not be locked yet.
    """
    for leftover in (*folder.glob(f".*{_UNFINISHED}"), *folder.glob(f".*{_PARTIAL}")):
        _remove_unlocked(leftover)


def _remove_unlocked(leftover: Path) -> None:
    """Remove what no process writes; an empty file or folder may be new, and not locked yet."""
    with _locked(leftover) as free, suppress(FileNotFoundError):  # it may have its name by now
        if free and leftover.is_dir() and any(leftover.iterdir()):
            shutil.rmtree(leftover, ignore_errors=True)
        elif free and leftover.is_file() and leftover.stat().st_size:
            leftover.unlink()


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Hold the folder's lock while the block runs; it goes with the process, however that ends.

    Yields False where another process has it, and None where none can: on a file system without
    locks, or in a folder that has gone.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield _lock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool | None:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def seeded_digest(seed: int, name: str) -> bytes:
    """A sort key that orders names as if by chance, the same on every machine."""
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def finite(value: Any) -> Any:
    """Replace by None every float that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


# --- YAML -----------------------------------------------------------------------------------------
# An alias repeats what it names, so that ten short lines can be a billion values. They are counted
# in the text's graph of nodes, where an alias is a pointer, before OmegaConf copies it.

#: Far more than any configuration has.
_BYTES, _VALUES = 200_000, 50_000


class TooMuchError(ValueError):
    """A YAML that is too long, or has too many values once its aliases are expanded."""


def read_yaml(path: Path) -> Any:
    """The content of a file. Raises what `parse_yaml` does, and `OSError`."""
    return parse_yaml(_text(path))


def yaml_text(path: Path) -> str:
    """The text of a file that can be read. Raises what `parse_yaml` does, and `OSError`."""
    text = _text(path)
    parse_yaml(text)
    return text


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_BYTES + 1)
    if len(data) > _BYTES:
        raise TooMuchError(f"is longer than {_BYTES:,} bytes")
    return data.decode()


def parse_yaml(text: str) -> Any:
    """The value of a text. Raises `TooMuchError` for what would not fit, and `YAMLError`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = _count(node, {}) if node is not None else 0
    except RecursionError:
        raise TooMuchError("is nested too deeply") from None
    if values > _VALUES:
        raise TooMuchError(f"its aliases are more than {_VALUES:,} values")
    return yaml.load(text, Loader=CheckedLoader)  # noqa: S506 (a SafeLoader)


def _count(node: Node, counts: dict[int, int]) -> int:
    """Count the values of a node with every alias expanded; each node is looked at once."""
    if id(node) in counts:
        return counts[id(node)]
    counts[id(node)] = _VALUES + 1  # until it is counted: a node that holds itself has no end
    children = node.value if isinstance(node, SequenceNode) else []
    if isinstance(node, MappingNode):
        children = [part for pair in node.value for part in pair]
    counts[id(node)] = 1 + sum(_count(child, counts) for child in children)
    return counts[id(node)]
