"""Files of others beside the weights, with nothing taken on trust: settings as data, and archives.

Of a tar, such as a `.nemo` file, a member is a plain file or a folder, below the folder that is
unpacked into and there once; the bytes that members say they have are counted before they are read.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import yaml

from equipoise.checkpoints.tensors import refuse, size
from equipoise.config.yaml_text import read_yaml
from equipoise.errors import EquipoiseError
from equipoise.models import foreign

#: tarfile reads a file in small pieces, and a header's extension, whatever its length, in one.
_MOST_AT_ONCE = 2**20
_MOST_MEMBERS = 10_000
#: What is left free on the disk.
_SPARE_BYTES = 10**8
_GZIP = b"\x1f\x8b"
_UNREADABLE = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)

#: The most bytes that an archive may hold, once what it holds already in the folder says so.
Allowance = Callable[[Path], int | None]


def yaml_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file. Raises `ConversionError`, also for a tag that names a class."""
    try:
        loaded = read_yaml(path)
    except (yaml.YAMLError, ValueError) as error:
        refuse("checkpoint.damaged-yaml", f"{path} is damaged: {error}")
    return loaded if isinstance(loaded, dict) else {}


def json_mapping(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ConversionError`, also for any other value."""
    try:
        return foreign.read_object(path)
    except EquipoiseError as error:
        refuse(error.code, error.message, error.remedy)


def check_folder(folder: Path) -> None:
    """Look through a folder before it is read. Raises `ConversionError`, see `foreign`."""
    try:
        foreign.check_folder(folder)
    except EquipoiseError as error:
        refuse(error.code, error.message, error.remedy)


def unpack(path: Path, folder: Path, allowance: Allowance) -> None:
    """Unpack a tar, or a tar in gzip, into `folder`, in one pass and in little memory.

    No more is unpacked than the disk has free, and no more than `allowance` says. Raises
    `ConversionError` that names the member; what was unpacked before it is the caller's to remove.
    """
    try:
        with path.open("rb") as plain:
            compressed = plain.read(len(_GZIP)) == _GZIP
        with (
            gzip.open(path) if compressed else path.open("rb") as file,
            tarfile.open(fileobj=_InPieces(file), mode="r:") as tar,  # type: ignore[call-overload]
        ):
            _Unpacking(path, folder, allowance).all_of(tar)
    except _UNREADABLE as error:
        refuse(
            "archive.unpackable",
            f"{path} cannot be unpacked: {error}",
            "Download or copy it again.",
        )


class _InPieces:
    """A file that is never read whole, whatever length a header names."""

    def __init__(self, file: BinaryIO | gzip.GzipFile) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header that is {count:,} bytes long")
        return self._file.read(count)


class _Unpacking:
    """The state of an unpacking; it decides what may come next."""

    def __init__(self, path: Path, folder: Path, allowance: Allowance) -> None:
        self._path, self._folder, self._allowance = path, folder, allowance
        self._free = shutil.disk_usage(folder).free - _SPARE_BYTES
        self._limit: int | None = None
        self._names: set[PurePosixPath] = set()
        self._bytes = 0

    def all_of(self, tar: tarfile.TarFile) -> None:
        """Unpack every member."""
        for member in tar:
            self._check_name(member)
            self._bytes += max(0, member.size)
            if self._bytes > self._free:
                refuse(
                    "archive.full-disk",
                    f"{self._path}: with {member.name} it is {size(self._bytes)}, and "
                    f"{self._folder.parent} has {size(self._free)} free",
                    "Free some space, or name a folder on another disk.",
                )
            self._check_allowance(f"{self._path}: with {member.name} it")
            # `TarFile.extract` cannot be told what to refuse before Python 3.11.4.
            destination = self._folder / member.name
            if member.isdir():
                destination.mkdir(parents=True, exist_ok=True)
                continue
            destination.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None  # a plain file, by its name's check
            with source, destination.open("xb") as file:
                shutil.copyfileobj(source, file)
        self._check_allowance(str(self._path))

    def _check_name(self, member: tarfile.TarInfo) -> None:
        name = PurePosixPath(member.name)
        statement = f"{self._path} holds {member.name!r}"
        if name.is_absolute() or ".." in name.parts:
            refuse("archive.path-outside", f"{statement}, which is outside of its folder")
        if not (member.isdir() or member.isreg()) or member.sparse is not None:
            refuse(
                "archive.special-file",
                f"{statement}, which is no plain file: a link, a device or a file with holes",
            )
        if name in self._names:
            refuse("archive.repeated-name", f"{statement} twice")
        self._names.add(name)
        if len(self._names) > _MOST_MEMBERS:
            refuse(
                "archive.too-many-files", f"{self._path} holds more than {_MOST_MEMBERS:,} files"
            )

    def _check_allowance(self, subject: str) -> None:
        if self._limit is None:
            self._limit = self._allowance(self._folder)
        if self._limit is not None and self._bytes > self._limit:
            refuse(
                "archive.oversize",
                f"{subject} is {size(self._bytes)}, and a model of its configuration takes no more "
                f"than {size(self._limit)}",
            )
